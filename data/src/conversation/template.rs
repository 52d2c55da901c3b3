//! Writes the text of a conversation with a Jinja template, as `transformers` does, and says which parts of it a model
//! is to write.
//!
//! The template of a model comes with its tokenizer; a tokenizer without one takes the default. Blocks are trimmed,
//! `raise_exception`, `tojson` and the methods of Python's strings are there as in `transformers`; `strftime_now` is not:
//! the same conversation is the same text on any day.
//!
//! Rendering finds the part of the text that is an answer: the template writes the messages before the answer together
//! with the beginning of an answer, and then the same messages with the answer. What the second text adds to the first
//! is the answer.

use std::path::Path;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::super::tokenizer::{Tokenizer, template};
use super::messages::{is_answer, message};
use capful_base::regular;

/// The template for tokenizers without one of their own.
pub const DEFAULT: &str = include_str!("default.jinja").trim_ascii_end();
/// Most template instructions that one rendering may execute: it stops a loop without an end.
const FUEL: u64 = 20_000_000;
/// The template's name within its environment.
const NAME: &str = "chat";

/// A part of a conversation's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The end of the part, an exclusive byte offset.
    pub end: usize,
    /// Whether a model is to write the part.
    pub answer: bool,
}

/// The text of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// All of it, up to the end of the last answer.
    pub text: String,
    /// Its parts, in order.
    pub parts: Vec<Part>,
    /// Answers that the template writes differently once later messages follow; they do not count as answers here.
    pub rewritten: u64,
}

/// What is wrong with a template, or with a conversation for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The source is not a valid template.
    #[error("the chat template {name} cannot be used: {reason}")]
    Unusable {
        /// The template's name.
        name: String,
        /// The reason, with the line.
        reason: String,
    },
    /// The template refuses this conversation.
    #[error("the chat template {name} refuses it: {reason}")]
    Refused {
        /// The template's name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The text of the first messages is not a prefix of the text of the whole conversation.
    #[error("the chat template {name} writes the messages before the last answer otherwise when the answer is there")]
    NotAppended {
        /// The template's name.
        name: String,
    },
}

/// A template that was read, with the names of the marks that it may write.
#[derive(Debug, Clone)]
pub struct ChatTemplate(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    /// The compiled template, or the reason why it could not be compiled.
    environment: Result<Environment<'static>, String>,
    name: String,
    source: String,
    marks: [String; 2],
}

/// Removes `{% generation %}`, an extension of `transformers` that marks answers; answers are found here without it.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = tag[2..end].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => out.push_str(&tag[..end + 2].replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag[..end + 2].replace("endgeneration", "endif")),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out + rest
}

/// JSON as Python's `json.dumps` writes it, without the escapes that HTML needs.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    let written = match indent {
        Some(indent) => {
            let (mut out, spaces) = (Vec::new(), " ".repeat(indent.min(16)));
            let format = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            let mut to = serde_json::Serializer::with_formatter(&mut out, format);
            serde::Serialize::serialize(value, &mut to).map(|()| out)
        }
        None => {
            let mut out = Vec::new();
            let mut to = serde_json::Serializer::with_formatter(&mut out, Spaced);
            serde::Serialize::serialize(value, &mut to).map(|()| out)
        }
    };
    let written = written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(String::from_utf8_lossy(&written).into_owned())
}

/// Writes a space after commas and colons.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, to: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, to: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, to: &mut W) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

/// What went wrong in a template, in one line.
fn reason(error: &Error) -> String {
    let mut said = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line().filter(|_| error.kind() != ErrorKind::InvalidOperation || error.detail().is_none())
    {
        said = format!("{said} (line {line})");
    }
    super::super::tokenizer::error::one_line(&said)
}

fn compiled(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_function("raise_exception", |what: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, what))
    });
    environment.add_filter("tojson", to_json);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.add_template_owned(NAME, without_generation(source))?;
    Ok(environment)
}

/// The names of the marks that templates may write.
fn marks(tokenizer: &dyn Tokenizer) -> [String; 2] {
    let config: serde_json::Value = serde_json::from_str(&tokenizer.config()).unwrap_or_default();
    // The value is a text, or an added token with its text. A template may write the mark even where the tokenizer does
    // not begin documents with it.
    let named = |key: &str| config[key].as_str().or(config[key]["content"].as_str()).unwrap_or_default().to_owned();
    ["bos_token", "eos_token"].map(named)
}

impl ChatTemplate {
    /// Compiles the template `source`, called `name`. It may write the marks of these names; an empty name stands for
    /// no mark.
    ///
    /// # Errors
    /// [`TemplateError::Unusable`].
    pub fn new(name: &str, source: &str, marks: [&str; 2]) -> Result<Self, TemplateError> {
        let template = Self::perhaps(name, source, marks);
        template.environment()?;
        Ok(template)
    }

    /// Compiles a template that may never be used: an error in it is reported when the template is used.
    fn perhaps(name: &str, source: &str, marks: [&str; 2]) -> Self {
        let environment = compiled(source).map_err(|e| reason(&e));
        let marks = marks.map(str::to_owned);
        Self(Arc::new(Compiled { environment, name: name.to_owned(), source: source.to_owned(), marks }))
    }

    fn environment(&self) -> Result<&Environment<'static>, TemplateError> {
        let unusable = |reason: &String| TemplateError::Unusable { name: self.0.name.clone(), reason: reason.clone() };
        self.0.environment.as_ref().map_err(unusable)
    }

    /// The default template, for marks of these names.
    pub fn usual(marks: [&str; 2]) -> Self {
        Self::new("default", DEFAULT, marks).expect("the default template is one")
    }

    /// The template of a tokenizer, or the default template where it has none.
    pub fn of(tokenizer: &dyn Tokenizer) -> Self {
        let marks = marks(tokenizer);
        let marks = [marks[0].as_str(), marks[1].as_str()];
        match template::of(tokenizer).into_iter().next() {
            Some((_, source)) => Self::perhaps("of the tokenizer", &source, marks),
            None => Self::usual(marks),
        }
    }

    /// The template of a file, for the marks of `tokenizer`, or for this program's own marks where no tokenizer is
    /// given.
    ///
    /// # Errors
    /// A file that cannot be read, or is not a valid template.
    pub fn of_file(path: &str, tokenizer: Option<&dyn Tokenizer>) -> Result<Self, TemplateError> {
        let unusable = |e: std::io::Error| TemplateError::Unusable { name: path.to_owned(), reason: e.to_string() };
        let source = regular::text_at_most(Path::new(path), template::LONGEST as u64).map_err(unusable)?;
        let marks = tokenizer.map_or_else(|| Self::default().0.marks.clone(), marks);
        Self::new(path, &source, [marks[0].as_str(), marks[1].as_str()])
    }

    /// The name of the template: its file, `default`, or `of the tokenizer`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The source text of the template.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// `text`, an output of this template, with a line end in place of each mark: the text that a tokenizer is built
    /// from.
    pub fn unmarked(&self, text: &str) -> String {
        let marks = self.0.marks.iter().filter(|mark| !mark.is_empty());
        marks.fold(text.to_owned(), |text, mark| text.replace(mark.as_str(), "\n"))
    }

    /// A number that distinguishes this template from others.
    pub fn key(&self) -> u64 {
        capful_core::random::stream(&self.0.source)
    }

    /// The text of `messages`. With `asks` the text continues up to where an answer begins.
    ///
    /// # Errors
    /// [`TemplateError::Refused`].
    pub fn render(&self, messages: &[Value], asks: bool) -> Result<String, TemplateError> {
        let Compiled { name, marks: [bos, eos], .. } = &*self.0;
        let rendered = self.environment()?.get_template(NAME).and_then(|template| {
            template.render(context! {
                messages, add_generation_prompt => asks, bos_token => bos, eos_token => eos,
                tools => (), documents => (),
            })
        });
        rendered.map_err(|e| TemplateError::Refused { name: name.clone(), reason: reason(&e) })
    }

    /// The text of `messages` up to their last answer, and which parts of it are answers. White space after an answer
    /// belongs to the part that follows.
    ///
    /// # Errors
    /// [`TemplateError::Refused`] and [`TemplateError::NotAppended`].
    pub fn answers(&self, messages: &[Value]) -> Result<Rendered, TemplateError> {
        let Some(last) = messages.iter().rposition(is_answer) else { return Ok(Rendered::default()) };
        let messages = &messages[..=last];
        let (mut text, mut rendered) = (self.render(messages, false)?, Rendered::default());
        for (number, _) in messages.iter().enumerate().filter(|(_, message)| is_answer(message)) {
            let before = self.render(&messages[..number], true)?;
            let with = if number == last { text.clone() } else { self.render(&messages[..=number], false)? };
            let with = with.trim_end();
            if !with.starts_with(&before) || !text.starts_with(with) {
                if number == last {
                    return Err(TemplateError::NotAppended { name: self.0.name.clone() });
                }
                rendered.rewritten += 1;
                continue;
            }
            let begin = rendered.parts.last().map_or(0, |part| part.end);
            if before.len() > begin {
                rendered.parts.push(Part { end: before.len(), answer: false });
            }
            if with.len() > before.len().max(begin) {
                rendered.parts.push(Part { end: with.len(), answer: true });
            }
        }
        text.truncate(rendered.parts.last().map_or(0, |part| part.end));
        rendered.text = text;
        Ok(rendered)
    }

    /// The text that the template writes after an answer, without white space at its end. It marks the end of answers.
    ///
    /// # Errors
    /// [`TemplateError::Refused`].
    pub fn ending(&self) -> Result<String, TemplateError> {
        let [user, answer] = ["user", "assistant"].map(|role| message(role, "PROBE"));
        let behind = |text: String| text.rsplit_once("PROBE").map(|(_, behind)| behind.to_owned()).unwrap_or_default();
        let ending = behind(self.render(&[user.clone(), answer.clone()], false)?).trim().to_owned();
        if !ending.is_empty() {
            return Ok(ending);
        }
        // Only the next message ends an answer.
        let text = self.render(&[user.clone(), answer, user], false)?;
        let ahead = text.rsplit_once("PROBE").map(|(before, _)| before.to_owned()).unwrap_or_default();
        Ok(behind(ahead).trim().to_owned())
    }
}

impl Default for ChatTemplate {
    /// The default template, for the marks of this program's own tokenizers.
    fn default() -> Self {
        use capful_core::vocab::{BOS, EOS, SPECIALS};
        Self::usual([BOS, EOS].map(|id| SPECIALS[id as usize]))
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
