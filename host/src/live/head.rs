//! Parses the head of a request.

use httparse::{EMPTY_HEADER, Error, Status as Parsed};

/// The most bytes of a head.
pub const LONGEST: usize = 8 << 10;
/// The most fields of a head.
const FIELDS: usize = 64;

/// What can be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The page.
    Page,
    /// The page's script.
    Script,
    /// The stream of events.
    Events,
}

/// A request that is answered with its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What it requests.
    pub target: Target,
    /// Whether it requests the head alone.
    pub head: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No HTTP request, or one with a body.
    Bad,
    /// It comes from a page of another origin.
    Foreign,
    /// An unknown path.
    Missing,
    /// A method other than GET and HEAD.
    Method,
    /// It did not arrive in time.
    Slow,
    /// It names another host: somebody's name that resolves to this machine.
    Misdirected,
    /// A head that is too long.
    Long,
    /// More connections than slots.
    Full,
    /// The page could not be made.
    Broken,
}

impl Refused {
    /// The status and its words.
    pub fn status(self) -> &'static str {
        match self {
            Refused::Bad => "400 Bad Request",
            Refused::Foreign => "403 Forbidden",
            Refused::Missing => "404 Not Found",
            Refused::Method => "405 Method Not Allowed",
            Refused::Slow => "408 Request Timeout",
            Refused::Misdirected => "421 Misdirected Request",
            Refused::Long => "431 Request Header Fields Too Large",
            Refused::Broken => "500 Internal Server Error",
            Refused::Full => "503 Service Unavailable",
        }
    }
}

/// This server's names: its address, and the name that every machine has for itself.
pub fn names(port: u16) -> [String; 2] {
    // Browsers omit the default port of a scheme.
    let port = if port == 80 { String::new() } else { format!(":{port}") };
    ["127.0.0.1", "localhost"].map(|host| format!("{host}{port}"))
}

/// Parses the request in `bytes` to the server of these `names`; `None` if the head is not complete.
///
/// # Errors
/// Why the request is refused.
pub fn read(bytes: &[u8], names: &[String; 2]) -> Result<Option<Request>, Refused> {
    let mut fields = [EMPTY_HEADER; FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(Parsed::Complete(_)) => {}
        Ok(Parsed::Partial) if bytes.len() >= LONGEST => return Err(Refused::Long),
        Ok(Parsed::Partial) => return Ok(None),
        Err(Error::TooManyHeaders) => return Err(Refused::Long),
        Err(_) => return Err(Refused::Bad),
    }
    let field = |name: &'static str| {
        request.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    };
    let mut hosts = field("host");
    let host = hosts.next().ok_or(Refused::Misdirected)?;
    if hosts.next().is_some() {
        return Err(Refused::Bad);
    }
    let named = names.iter().find(|name| host.eq_ignore_ascii_case(name.as_bytes())).ok_or(Refused::Misdirected)?;
    let own = |origin: &[u8]| origin.strip_prefix(b"http://").is_some_and(|host| host == named.as_bytes());
    if !field("origin").all(own) {
        return Err(Refused::Foreign);
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Refused::Method),
    };
    if field("transfer-encoding").next().is_some() || field("content-length").any(|length| length != b"0") {
        return Err(Refused::Bad);
    }
    let target = match request.path {
        Some("/") => Target::Page,
        Some("/live.js") => Target::Script,
        Some("/events") => Target::Events,
        _ => return Err(Refused::Missing),
    };
    Ok(Some(Request { target, head }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Option<Request>, Refused> {
        read(text.as_bytes(), &names(8080))
    }

    #[test]
    fn what_is_served_is_asked_for_by_its_path() {
        for (path, target) in [("/", Target::Page), ("/live.js", Target::Script), ("/events", Target::Events)] {
            for (method, head) in [("GET", false), ("HEAD", true)] {
                for host in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080"] {
                    let text = format!("{method} {path} HTTP/1.1\r\nAccept: */*\r\nhost: {host}\r\n\r\n");
                    assert_eq!(asked(&text), Ok(Some(Request { target, head })), "{text}");
                    // A head that is cut anywhere is not complete.
                    assert!((0..text.len()).all(|end| asked(&text[..end]) == Ok(None)), "{text}");
                }
            }
        }
    }

    #[test]
    fn everything_else_is_refused_by_its_own_status() {
        let with = |line: &str, fields: &str| asked(&format!("{line} HTTP/1.1\r\n{fields}\r\n\r\n")).unwrap_err();
        const HOST: &str = "Host: 127.0.0.1:8080";
        for path in
            ["/config.toml", "/../config.toml", "//", "/?a", "/index.html", "http://127.0.0.1:8080/", "*", "/events/"]
        {
            assert_eq!(with(&format!("GET {path}"), HOST), Refused::Missing, "{path}");
        }
        for host in [
            "Host: evil.example:8080",
            "Host: 127.0.0.1",
            "Host: 127.0.0.1:80",
            "Host: 127.0.0.1:8080.evil.example",
            "Host: [::1]:8080",
            "Host:",
            "Accept: x",
            "Host: 127.0.0.1:8080, evil.example",
        ] {
            assert_eq!(with("GET /", host), Refused::Misdirected, "{host}");
        }
        assert_eq!(with("GET /", &format!("{HOST}\r\nHost: evil.example")), Refused::Bad);
        for origin in
            ["null", "http://evil.example", "https://127.0.0.1:8080", "http://127.0.0.1:80", "http://localhost:8080"]
        {
            assert_eq!(with("GET /events", &format!("{HOST}\r\nOrigin: {origin}")), Refused::Foreign, "{origin}");
        }
        let own = asked("GET / HTTP/1.1\r\nHost: localhost:8080\r\nOrigin: http://localhost:8080\r\n\r\n");
        assert!(own.unwrap().is_some());
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get"] {
            assert_eq!(with(&format!("{method} /"), HOST), Refused::Method, "{method}");
        }
        for body in ["Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: 0\r\nContent-Length: 1"] {
            assert_eq!(with("GET /", &format!("{HOST}\r\n{body}")), Refused::Bad, "{body}");
        }
        for text in
            ["GET /\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\0\0\0", "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", "{}\r\n"]
        {
            assert_eq!(asked(text), Err(Refused::Bad), "{text:?}");
        }
        let fields: String = (0..FIELDS).map(|n| format!("x-{n}: y\r\n")).collect();
        assert_eq!(with("GET /", &format!("{fields}{HOST}")), Refused::Long);
        let long = format!("GET / HTTP/1.1\r\n{HOST}\r\nCookie: {}", "x".repeat(LONGEST));
        assert_eq!((asked(&long[..LONGEST - 1]), asked(&long[..LONGEST])), (Ok(None), Err(Refused::Long)));
    }
}
