//! `host train --live`: the page of a run in progress, over real sockets.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use capful_tests::binary::{TINY, command, directory, host};
use capful_tests::page::{all, number};
use capful_tests::runs;
use serde_json::Value;

/// A run that serves its page, and its output.
struct Served {
    child: Child,
    port: u16,
    lines: Receiver<String>,
}

impl Served {
    /// Begins `host train FLAGS --live 0`.
    fn train(dir: &Path, flags: &str) -> Served {
        let line = format!("train {flags} --live 0");
        let mut child = command(dir, &line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let (to, lines) = channel();
        let from = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let mut said = Vec::new();
        let port = loop {
            let line = lines.recv().unwrap_or_else(|_| panic!("no page: {said:?}"));
            if let Some(address) = line.strip_prefix("live page: http://127.0.0.1:") {
                break address.strip_suffix('/').unwrap().parse().unwrap();
            }
            said.push(line);
        };
        Served { child, port, lines }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// The response to these bytes; truncated where the server closed the connection.
    fn ask(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    /// The response to a request line with more fields.
    fn get(&self, line: &str, fields: &str) -> String {
        self.ask(format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{fields}\r\n", self.port).as_bytes())
    }

    /// The page.
    #[track_caller]
    fn page(&self) -> String {
        let answer = self.get("GET /", "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())) || head.ends_with(&body.len().to_string())
        );
        body.to_owned()
    }

    /// A stream of events.
    fn events(&self) -> Events {
        let mut stream = self.connect();
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", self.port).unwrap();
        Events(BufReader::new(stream))
    }

    /// Interrupts the run and waits for its end, which must come soon.
    fn interrupt(mut self) -> Vec<String> {
        Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        let begun = Instant::now();
        let status = self.child.wait().unwrap();
        assert!(
            status.code() == Some(130) && begun.elapsed() < Duration::from_secs(5),
            "{status} {:?}",
            begun.elapsed()
        );
        self.lines.iter().collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The events of a stream: each its name and its data.
struct Events(BufReader<TcpStream>);

impl Iterator for Events {
    type Item = (String, Value);

    fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(event) = line.trim_end().strip_prefix("event: ") {
                name = event.to_owned();
            } else if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }
}

/// Asserts that the figures of a page are those of the first `logged` steps of a run's metrics, or of all of them.
#[track_caller]
fn assert_figures(html: &str, run: &Path, logged: Option<usize>) {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (name, key) in [("training loss", "loss"), ("lr", "lr"), ("norm", "norm"), ("tokens_per_s", "tokens_per_s")] {
        let mut values: Vec<f64> = lines.iter().filter_map(|line| line[key].as_f64()).collect();
        values.truncate(logged.unwrap_or(usize::MAX));
        let [low, high] = [f64::min, f64::max].map(|pick| values.iter().copied().reduce(pick).unwrap());
        let (count, last) = (values.len(), values.last().unwrap());
        let said = format!(
            "data-name=\"{name}\" data-count=\"{count}\" data-last=\"{last}\" data-low=\"{low}\" data-high=\"{high}\""
        );
        assert!(html.contains(&said), "{said}");
    }
    if logged.is_none() {
        let losses: Vec<f64> = lines.iter().filter_map(|line| line["val_loss"].as_f64()).collect();
        assert_eq!(number(html, "val_loss"), *losses.last().unwrap());
        // Each of them, by its step.
        for line in lines.iter().filter(|line| line["val_loss"].is_f64()) {
            let mark = format!("data-step=\"{}\" data-value=\"{}\"", line["step"], line["val_loss"]);
            assert_eq!(html.matches(&mark).count(), 1, "{mark}");
        }
    }
}

/// The number of a run's steps on a page.
fn logged(html: &str) -> usize {
    all(html, "data-name=\"training loss\" data-count=\"").first().map_or(0, |count| count.parse().unwrap())
}

#[test]
fn the_page_is_that_of_its_run_while_it_goes_on_and_changes_nothing_of_it() {
    let dir = directory();
    let dir = dir.path();
    // Some ten seconds on an idle machine: enough for several events and new pages on any machine.
    let flags = format!("{TINY} --threads 1 --steps 20000 --eval-every 4000 --log-every 200 --json");
    let run = Served::train(dir, &format!("{flags} --out live"));
    let mut events = run.events();
    let first = run.page();
    assert!(first.contains("data-key=\"state\" data-value=\"running\"") && first.contains("of 20,000"), "{first}");
    assert!(first.contains("<script src=\"/live.js\"") && first.contains("<noscript><meta http-equiv=\"refresh\""));
    let (mut steps, mut last, mut before) = (Vec::new(), String::new(), String::new());
    for (name, data) in &mut events {
        assert!(data["loss"].is_f64() || data["step"] == 0, "{data}");
        steps.push(data["step"].as_u64().unwrap());
        // A reader of the end event gets the last page.
        before = std::mem::replace(&mut last, run.page());
        if name == "end" {
            break;
        }
    }
    drop(events);
    // At most one event in a second, each for a logged step, and the last for the last step.
    assert!(steps.len() >= 3 && steps.windows(2).all(|two| two[0] <= two[1]), "{steps:?}");
    assert!(steps.iter().all(|step| step % 200 == 0 || *step == 1) && steps.last() == Some(&20_000), "{steps:?}");
    let mut run = run;
    let mut said = String::new();
    run.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(run.child.wait().unwrap().success());
    let lines = dir.join("live");
    assert_figures(&last, &lines, None);
    // A page that was delivered and read late.
    assert!(before.contains("data-value=\"running\"") && logged(&before) > logged(&first), "{}", logged(&before));
    assert_figures(&before, &lines, Some(logged(&before)));
    assert!(last.contains("data-key=\"state\" data-value=\"done\"") && !last.contains("<script"), "{last}");
    assert!(last.contains("data-label=\"unigram\""), "what the command said at its end");
    // Only the parts of a report, apart from the marks of a served page.
    host(dir, "report --run live --out page.html").ok();
    let report = fs::read_to_string(dir.join("page.html")).unwrap();
    let main = |html: &str| html.split("<main>").nth(1).unwrap().split("</main>").next().unwrap().to_owned();
    assert_eq!(main(&report), main(&last));
    // Steps allocate nothing, whatever requests there are.
    let result: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(result["heap_allocations"], 0, "{result}");

    host(dir, &format!("train {flags} --out alone")).ok();
    assert!(runs::weights(dir, "live", 20_000) == runs::weights(dir, "alone", 20_000), "the weights differ");
    assert_eq!(runs::losses(dir, "live"), runs::losses(dir, "alone"));
}

#[test]
fn what_is_not_for_this_page_is_refused() {
    let dir = directory();
    let run = Served::train(dir.path(), &format!("{TINY} --threads 1 --steps 1000000 --out run"));
    let port = run.port;
    let own = format!("Host: 127.0.0.1:{port}");
    let status = |answer: &str| answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}")).to_owned();
    for (line, fields, expected) in [
        ("GET /", &*own, "200"),
        ("HEAD /", &format!("Host: localhost:{port}"), "200"),
        ("GET /live.js", &format!("{own}\r\nOrigin: http://127.0.0.1:{port}"), "200"),
        ("HEAD /events", &own, "200"),
        ("GET /", "Host: evil.example", "421"),
        ("GET /events", &format!("Host: evil.example:{port}"), "421"),
        ("GET /", "Accept: */*", "421"),
        ("GET /", &format!("{own}\r\nOrigin: http://evil.example"), "403"),
        ("GET /events", &format!("{own}\r\nOrigin: null"), "403"),
        ("POST /", &format!("{own}\r\nContent-Length: 0"), "405"),
        ("GET /", &format!("{own}\r\nContent-Length: 9"), "400"),
        ("GET /config.toml", &own, "404"),
        ("GET /../config.toml", &own, "404"),
        ("GET /%2e%2e/config.toml", &own, "404"),
        ("GET / /", &own, "400"),
    ] {
        let answer = run.ask(format!("{line} HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes());
        assert_eq!(status(&answer), expected, "{line} {fields}\n{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        for field in [
            "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; \
             img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n",
            "X-Content-Type-Options: nosniff\r\n",
            "Referrer-Policy: no-referrer\r\n",
            "Cache-Control: no-store\r\n",
            "Cross-Origin-Resource-Policy: same-origin\r\n",
            "Connection: close\r\n",
        ] {
            assert!(format!("{head}\r\n").contains(field), "{field} {head}");
        }
        assert_eq!(body.is_empty(), line.starts_with("HEAD") || expected != "200", "{line}");
    }
    let long = format!("GET / HTTP/1.1\r\n{own}\r\nCookie: {}\r\n\r\n", "x".repeat(64 << 10));
    assert_eq!(status(&run.ask(long.as_bytes())), "431");
    assert_eq!(status(&run.ask(&[0; 64 << 10])), "400");
    assert_eq!(status(&run.ask(b"EHLO\r\n\r\n")), "400");
    // A body of a megabyte: the response can be read nevertheless.
    let long = format!("POST / HTTP/1.1\r\n{own}\r\nContent-Length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
    assert_eq!(status(&run.ask(long.as_bytes())), "405");
    assert!(TcpStream::connect(("::1", port)).is_err(), "it listens elsewhere");
    run.interrupt();
}

#[test]
fn clients_that_wait_and_trickle_lose_their_places_and_the_run_goes_on() {
    let dir = directory();
    let dir = dir.path();
    let flags = format!("{TINY} --threads 1 --log-every 1");
    let run = Served::train(dir, &format!("{flags} --steps 1000000 --out run"));
    let begun = Instant::now();
    // A client of events that reads nothing, one that writes a byte at a time, and idle ones that exceed the remaining
    // slots.
    let deaf = run.events();
    let trickle = run.connect();
    let idle: Vec<TcpStream> = (0..10).map(|_| run.connect()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let refused = run.get("GET /", "");
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 503 "), "{refused}");
    let line = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", run.port);
    let cut = line.bytes().position(|byte| {
        let mut stream = &trickle;
        let gone = stream.write_all(&[byte]).is_err();
        std::thread::sleep(Duration::from_millis(500));
        gone
    });
    let cut = cut.unwrap_or(usize::MAX);
    assert!((8..=14).contains(&cut), "it was cut after {cut} bytes");
    let mut answer = String::new();
    let mut first = &idle[0];
    let _ = first.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    // The longer a page takes to draw, the less often it is drawn.
    let (before, begun) = (logged(&run.page()), Instant::now());
    let after =
        std::iter::repeat_with(|| logged(&run.page())).find(|now| *now > before || begun.elapsed().as_secs() > 20);
    let after = after.unwrap();
    assert!(before > 0 && after > before, "{before} {after}");
    // The unread stream of events is still open, and does not delay the end.
    run.interrupt();
    drop((deaf, idle));

    // A resumed run has the earlier lines.
    let run = Served::train(dir, "--resume --out run");
    let lines = || fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap().lines().count();
    let (page, written) = (run.page(), lines());
    assert!(logged(&page) >= after && logged(&page) <= written, "{after} {} {written}", logged(&page));
    assert_figures(&page, &dir.join("run"), Some(logged(&page)));
    assert!(page.contains("data-key=\"sessions\" data-value=\"2\""));
    run.interrupt();
}

#[test]
fn a_port_that_cannot_be_had_is_refused_before_anything_is_made() {
    let dir = directory();
    let dir = dir.path();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut refusals = vec![
        (port.to_string(), "this port is in use; give another, or --live 0"),
        ("70000".to_owned(), "--live"),
        ("-1".to_owned(), "--live"),
        ("x".to_owned(), "--live"),
    ];
    // Not for a privileged process.
    if TcpListener::bind((Ipv4Addr::LOCALHOST, 1)).is_err() {
        refusals.push(("1".to_owned(), "this port is not for everybody"));
    }
    for (port, says) in refusals {
        host(dir, &format!("train {TINY} --steps 1 --out run --live {port}")).refused(2, &[says]);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "{port}");
    }
}

#[test]
fn a_plan_counts_the_page() {
    let dir = directory();
    let dir = dir.path();
    let flags = format!("{TINY} --tokenizer byte --steps 3").replace("--baseline-tokens 20000", "--baseline-tokens 0");
    let planned = |name: &str, more: &str| {
        host(dir, &format!("train {flags} --out {name} {more}")).ok();
        let plan: Value = serde_json::from_slice(&fs::read(dir.join(name).join("plan.json")).unwrap()).unwrap();
        let lines = plan["outside"].as_array().unwrap().iter();
        let page =
            lines.filter(|line| line["name"] == "live page, at most").map(|line| line["bytes"].as_u64().unwrap()).sum();
        (plan["needed_bytes"].as_u64().unwrap(), page)
    };
    let (without, none): (u64, u64) = planned("without", "");
    let (with, page) = planned("with", "--live 0");
    assert_eq!((none, with), (0, without + page));
    assert!((4 << 20..32 << 20).contains(&page), "{page}");
    let line = format!("train {flags} --out other --budget {}B", with - 1);
    host(dir, &format!("{line} --live 0")).refused(2, &["more than the"]);
    assert!(!dir.join("other").exists());
    host(dir, &line).ok();
    // The flag is not part of the run's configuration.
    assert!(!fs::read_to_string(dir.join("with/config.toml")).unwrap().contains("live"));
}
