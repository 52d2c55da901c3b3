//! The kernels' arguments as Rust declarations for the host: for every struct `…Args` in the kernels' sources, and for
//! the structs that are fields of one, a Rust struct that `repr(C)` lays out as C++ does, with the same field names in
//! the same order. Syntax that this parser does not know is refused, so the two sides cannot differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Structs that are fields of arguments and not named `…Args`; in Rust their names have that ending.
const FIELDS: [&str; 3] = ["Heads", "Pattern", "Order"];

/// A struct or union of a source.
struct Struct {
    union: bool,
    /// The alignment in bytes, if the source specifies one.
    alignment: Option<u32>,
    /// Names and types in Rust.
    fields: Vec<(String, String)>,
}

/// The name of a struct in Rust; `None` for structs that are no arguments.
fn name_of(name: &str) -> Option<String> {
    match name {
        _ if name.ends_with("Args") => Some(name.to_owned()),
        _ => FIELDS.contains(&name).then(|| format!("{name}Args")),
    }
}

/// The code of a macro `arguments!` that declares all argument structs of these sources.
pub fn declare<'a>(sources: impl IntoIterator<Item = &'a str>) -> Result<String, String> {
    let (mut structs, mut lengths, mut taken) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for text in sources {
        constants(text, &mut lengths);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(argument) = exported(line) {
                taken.push(argument?);
            }
            let Some((union, name)) = opened(line) else { continue };
            let found = fields(name, &mut lines)?;
            if structs.insert(name_of(name).unwrap_or_default(), Struct { union, ..found }).is_some() {
                return Err(format!("there are two structs {name}"));
            }
        }
    }
    if let Some(name) = taken.iter().find(|name| !structs.contains_key(*name)) {
        return Err(format!("a kernel takes {name}, which is no struct of the sources"));
    }
    let mut code = String::new();
    for (name, found) in &structs {
        found.write(name, &structs, &lengths, &mut code).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(format!(
        "/// Declares what kernels take, as their sources say.\n#[doc(hidden)]\n#[macro_export]\n\
         macro_rules! arguments {{\n() => {{\n{code}}};\n}}\n"
    ))
}

/// The integer constants of a source. A name with different values in different sources counts as unknown.
fn constants(text: &str, lengths: &mut BTreeMap<String, Option<u32>>) {
    for line in text.lines().filter_map(|line| line.strip_prefix("constexpr u32 ")) {
        for (name, value) in line.split(&[',', ';']).filter_map(|part| part.trim().split_once(" = ")) {
            let value = value.parse().ok();
            let before = *lengths.entry(name.to_owned()).or_insert(value);
            lengths.insert(name.to_owned(), value.filter(|_| before == value));
        }
    }
}

/// The argument type of the kernel that a line exports. The macros that export kernels call it `Args`.
fn exported(line: &str) -> Option<Result<String, String>> {
    let (kind, arguments) = line.trim_start().split_once('(')?;
    let name = arguments.split(',').nth(1).unwrap_or_default().trim();
    if !["EXPORT", "EXPORT_PAIR", "EXPORT_MANY", "EXPORT_BOTH"].contains(&kind) || name == "Args" {
        return None;
    }
    Some(name_of(name).ok_or_else(|| format!("what a kernel takes is called …Args, not {name}")))
}

/// If a line begins a struct or union that the host declares: whether it is a union, and its name.
fn opened(line: &str) -> Option<(bool, &str)> {
    let union = line.starts_with("union ");
    let name = line.strip_prefix("struct ").or(line.strip_prefix("union "))?.strip_suffix(" {")?;
    name_of(name).map(|_| (union, name))
}

/// Reads the fields of a struct up to its end.
fn fields<'a>(name: &str, lines: &mut impl Iterator<Item = &'a str>) -> Result<Struct, String> {
    let mut found = Struct { union: false, alignment: None, fields: Vec::new() };
    let mut depth = 1u32;
    for line in lines {
        let line = line.split("//").next().unwrap_or_default().trim();
        let outside = depth == 1;
        for brace in line.chars() {
            depth = match brace {
                '{' => depth + 1,
                '}' => depth - 1,
                _ => depth,
            };
        }
        if depth == 0 {
            return Ok(found);
        }
        // Methods and their bodies, and other lines without a field.
        if !outside || line.is_empty() || line.starts_with("static ") || line.starts_with("__device__ ") {
            continue;
        }
        let mut field = line.strip_suffix(';').ok_or_else(|| format!("{name}: a field ends in ;, not {line}"))?;
        if let Some((alignment, rest)) = field.strip_prefix("alignas(").and_then(|rest| rest.split_once(") ")) {
            if !found.fields.is_empty() {
                return Err(format!("{name}: only its first field may be aligned"));
            }
            found.alignment = Some(alignment.parse().map_err(|_| format!("{name}: alignas({alignment})"))?);
            field = rest;
        }
        found.fields.extend(declared(field).ok_or_else(|| format!("{name}: what is {line}?"))?);
    }
    Err(format!("{name} does not end"))
}

/// The names and types of a declaration without its semicolon.
fn declared(field: &str) -> Option<Vec<(String, String)>> {
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let (kind, names) = match field.rsplit_once("* ") {
        // A pointer. With several names only the first one would be a pointer.
        Some((_, name)) if !name.contains(',') => ("u64", name),
        Some(_) => return None,
        None => field.split_once(' ')?,
    };
    let kind = match kind {
        "u64" | "u32" => kind.to_owned(),
        "float" => "f32".to_owned(),
        _ => name_of(kind)?,
    };
    let named = names.split(", ").map(|name| match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((name, length)) => (word(name) && word(length)).then(|| (name.to_owned(), format!("[{kind}; {length}]"))),
        None => word(name).then(|| (name.to_owned(), kind.clone())),
    });
    named.collect()
}

impl Struct {
    /// Writes it as Rust, with the lengths of arrays as numbers.
    fn write(
        &self,
        name: &str,
        all: &BTreeMap<String, Struct>,
        lengths: &BTreeMap<String, Option<u32>>,
        code: &mut String,
    ) -> Result<(), String> {
        let plain: BTreeSet<&str> = BTreeSet::from(["u32", "u64", "f32"]);
        let simple = self.fields.iter().all(|(_, kind)| plain.contains(kind.as_str()));
        let also = if simple && !self.union { ", Debug, Default, PartialEq" } else { "" };
        let aligned = self.alignment.map_or(String::new(), |bytes| format!(", align({bytes})"));
        let word = if self.union { "union" } else { "struct" };
        let mut write = |line: String| writeln!(code, "{line}").map_err(|e| e.to_string());
        write(format!("#[repr(C{aligned})]\n#[derive(Clone, Copy{also})]\npub(crate) {word} {name} {{"))?;
        for (field, kind) in &self.fields {
            let (element, kind) = match kind.strip_prefix('[').and_then(|k| k.strip_suffix(']')?.split_once("; ")) {
                Some((element, length)) => {
                    let length = length.parse().ok().or_else(|| lengths.get(length).copied().flatten());
                    (element, format!("[{element}; {}]", length.ok_or("how long is an array?")?))
                }
                None => (kind.as_str(), kind.clone()),
            };
            if !plain.contains(element) && !all.contains_key(element) {
                return Err(format!("what is {element}?"));
            }
            write(format!("pub(crate) {field}: {kind},"))?;
        }
        write("}".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::declare;

    #[test]
    fn a_struct_has_the_fields_of_its_source_in_their_order() {
        let source = "constexpr u32 MOST = 3, WARPS = 2 * MOST;\n\
            struct Heads {\n    u32 queries, keys;\n\n    __device__ u32 group() const {\n        return queries / keys;\n    }\n};\n\
            union AnyArgs {\n    Heads heads;\n    float scale;\n};\n\
            struct OneArgs {\n    alignas(64) u64 map[16];\n    const void* x[MOST];  // u32 y;\n    static constexpr u32 N = 1;\n    AnyArgs of;\n};\n\
            struct Other {\n    int i;\n};\n\
            EXPORT(one, OneArgs, 256, one)\n";
        let code = declare([source]).unwrap();
        let expected = "#[repr(C)]\n#[derive(Clone, Copy)]\npub(crate) union AnyArgs {\n\
            pub(crate) heads: HeadsArgs,\npub(crate) scale: f32,\n}\n\
            #[repr(C)]\n#[derive(Clone, Copy, Debug, Default, PartialEq)]\npub(crate) struct HeadsArgs {\n\
            pub(crate) queries: u32,\npub(crate) keys: u32,\n}\n\
            #[repr(C, align(64))]\n#[derive(Clone, Copy)]\npub(crate) struct OneArgs {\n\
            pub(crate) map: [u64; 16],\npub(crate) x: [u64; 3],\npub(crate) of: AnyArgs,\n}\n";
        assert!(code.contains(expected), "{code}");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let body = |fields: &str| declare([format!("struct OneArgs {{\n{fields}\n}};\n").as_str()]);
        assert!(body("    u32 a, b;").is_ok());
        for fields in [
            "    int a;",
            "    float* a, b;",
            "    Other a;",
            "    LaterArgs a;",
            "    u32 a[MOST];",
            "    u32 a",
            "    u32 a : 3;",
            "    u32 a;\n    alignas(64) u64 b;",
        ] {
            assert!(body(fields).is_err(), "{fields}");
        }
        assert!(declare(["struct OneArgs {\n    u32 a;\n"]).is_err());
        assert!(declare(["struct OneArgs {\n    u32 a;\n};\n"; 2]).is_err());
        assert!(declare(["EXPORT(one, Other, 256, one)\n"]).is_err());
        assert!(declare(["EXPORT(one, OneArgs, 256, one)\n"]).is_err());
        // A name with two values has no value.
        let long = "constexpr u32 MOST = 3;\nstruct OneArgs {\n    u32 a[MOST];\n};\n";
        assert!(declare([long]).is_ok());
        assert!(declare([long, "constexpr u32 MOST = 4;\n"]).is_err());
    }
}
