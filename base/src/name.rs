//! The name under which the command was called: it has two, because on many machines `host` queries DNS.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

/// The default name, and the other one.
const HOST: &str = "host";
const CAPFUL: &str = "capful";

/// The name under which this process was called. A copy or a link of any other name calls itself `host`.
pub fn called() -> &'static str {
    of(std::env::args_os().next().as_deref())
}

fn of(program: Option<&OsStr>) -> &'static str {
    let stem = program.and_then(|program| Path::new(program).file_stem());
    if stem.is_some_and(|stem| stem == CAPFUL) { CAPFUL } else { HOST }
}

/// `text`, with the name of this process in the commands that it quotes in backquotes.
pub fn spelled(text: &str) -> Cow<'_, str> {
    spelled_as(called(), text)
}

fn spelled_as<'a>(name: &str, text: &'a str) -> Cow<'a, str> {
    if name == HOST { text.into() } else { text.replace("`host ", &format!("`{name} ")).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_called_as_the_user_called_it() {
        let name = |program: &str| of(Some(program.as_ref()));
        assert_eq!(["capful", "/usr/bin/capful", r"./capful.exe"].map(name), [CAPFUL; 3]);
        assert_eq!(["host", "target/debug/host-under-test", "capful-2", ""].map(name), [HOST; 4]);
        assert_eq!(of(None), HOST);
        let text = "`host presets` lists them; the host is there";
        assert_eq!(spelled_as(HOST, text), text);
        assert_eq!(spelled_as(CAPFUL, text), "`capful presets` lists them; the host is there");
    }
}
