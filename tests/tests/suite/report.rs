//! The page of a run: its numbers are those of the run's files, and all text of a run is escaped.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host, host_with};
use capful_tests::page::{all, number};
use serde_json::Value;

/// For each family, a run that takes a moment.
fn families() -> [(&'static str, String); 3] {
    const NEUROGEN: &str = "--preset neurogen-tiny --set embedding=16 --set fan_out=8 --batch-size 4 --seq-len 16 \
                            --eval-tokens 500 --baseline-tokens 20000";
    [
        ("pythia", TINY.to_owned()),
        ("yxanul", format!("--preset yxanul-tiny --set rank=8 --set kv_heads=1 {TINY} --optimizer muon --ema 0.9")),
        ("neurogen", NEUROGEN.to_owned()),
    ]
}

/// Asserts that every opened element is closed.
#[track_caller]
fn assert_whole(html: &str) {
    assert!(html.starts_with("<!DOCTYPE html>\n") && html.ends_with("</html>\n"), "{}", &html[..40]);
    for name in
        ["main", "section", "table", "thead", "tbody", "tr", "figure", "svg", "g", "pre", "code", "ul", "li", "div"]
    {
        let begun = html.matches(&format!("<{name}>")).count() + html.matches(&format!("<{name} ")).count();
        assert_eq!(begun, html.matches(&format!("</{name}>")).count(), "{name}");
    }
    for elsewhere in ["<script", "http://", "https://", "<link rel=\"stylesheet", "@import", "url("] {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn the_numbers_of_a_page_are_those_of_its_run() {
    let dir = directory();
    let dir = dir.path();
    for (family, flags) in families() {
        host(dir, &format!("train {flags} --steps 45 --eval-every 20 --threads 1 --out {family}")).ok();
        let said = host(dir, &format!("report --run {family} --out {family}.html")).ok().out;
        assert!(said.starts_with(&format!("{family}.html: ")) && said.contains("1 run"), "{said}");
        let html = fs::read_to_string(dir.join(format!("{family}.html"))).unwrap();
        assert_whole(&html);
        assert!(html.len() <= 400_000, "{}", html.len());

        // The metrics, parsed independently.
        let lines = fs::read_to_string(dir.join(family).join("metrics.jsonl")).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |key: &str| -> Vec<f64> { lines.iter().filter_map(|line| line[key].as_f64()).collect() };
        let (losses, evaluations) = (of("loss"), of("val_loss"));
        assert_eq!(number(&html, "val_loss"), *evaluations.last().unwrap());
        assert_eq!(number(&html, "best_val_loss"), evaluations.iter().copied().fold(f64::INFINITY, f64::min));
        assert_eq!(number(&html, "loss"), *losses.last().unwrap());
        assert_eq!((number(&html, "steps"), number(&html, "tokens")), (45.0, *of("tokens").last().unwrap()));
        for (name, values) in [
            ("training loss", &losses),
            ("lr", &of("lr")),
            ("norm", &of("norm")),
            ("tokens_per_s", &of("tokens_per_s")),
        ] {
            let [low, high] = [f64::min, f64::max].map(|pick| values.iter().copied().reduce(pick).unwrap());
            let (count, last) = (values.len(), values.last().unwrap());
            let said = format!(
                "data-name=\"{name}\" data-count=\"{count}\" data-last=\"{last}\" data-low=\"{low}\" data-high=\"{high}\""
            );
            assert!(html.contains(&said), "{said}");
        }
        let marked: Vec<f64> =
            all(&html, "data-step=\"20\" data-value=\"").iter().map(|value| value.parse().unwrap()).collect();
        assert!(marked.contains(&evaluations[0]) && evaluations.len() == 3, "{marked:?}");
        let errors = all(&html, &format!("data-value=\"{}\" data-error=\"", evaluations[2]));
        assert_eq!(errors.first().and_then(|error| error.parse().ok()), of("val_loss_se").last().copied());
        if let Some(bits) = of("val_bits_per_byte").last() {
            assert_eq!(number(&html, "bits_per_byte"), *bits);
        }

        // The plan.
        let plan: Value = serde_json::from_slice(&fs::read(dir.join(family).join("plan.json")).unwrap()).unwrap();
        let sizes: Vec<u64> = all(&html, "\" data-bytes=\"").iter().map(|bytes| bytes.parse().unwrap()).collect();
        let expected = plan["arena_bytes"].as_u64().unwrap() + plan["outside_arena_bytes"].as_u64().unwrap();
        // The drawing, its cells and the parts of the table contain it, once each.
        assert_eq!((sizes[0], sizes.iter().sum::<u64>()), (expected, 3 * expected));
        assert_eq!(number(&html, "params"), plan["params"].as_f64().unwrap());

        // Figures that only the run's command knew.
        let events = fs::read_to_string(dir.join(family).join("sessions.jsonl")).unwrap();
        let ended: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
        let unigram = ended["result"]["baselines"]["unigram"].as_f64().unwrap();
        assert!(html.contains(&format!("data-label=\"unigram\" data-value=\"{unigram}\"")), "{unigram}");
        assert_eq!(number(&html, "used_bytes"), ended["result"]["training_peak_rss_bytes"].as_f64().unwrap());
        let command = format!("host train {}", flags.split_whitespace().next().unwrap());
        assert!(all(&html, "data-key=\"command\" data-value=\"")[0].starts_with(&command), "{command}");
        assert_eq!(all(&html, "class=\"sample\" data-step=\"").len(), 1);
        assert!(html.contains("It is done.") && html.contains("data-key=\"state\" data-value=\"done\""));
        assert_eq!(html.contains("Firing rates by module"), family == "neurogen");
        assert_eq!(html.contains("of the averaged weights"), family == "yxanul");
    }

    // A profile, made with the command on the page.
    let page = fs::read_to_string(dir.join("pythia.html")).unwrap();
    let asked = "host bench --config pythia&#x2f;config.toml --steps 10 --profile --json &gt; pythia&#x2f;profile.json";
    assert!(page.contains(asked), "no {asked}");
    let profile = host(dir, "bench --config pythia/config.toml --steps 3 --profile --json").ok();
    fs::write(dir.join("pythia/profile.json"), &profile.out).unwrap();
    host(dir, "report --run pythia --out pythia.html").ok();
    let page = fs::read_to_string(dir.join("pythia.html")).unwrap();
    let totals = &profile.json()["profile"]["totals"];
    let names: Vec<&str> = totals.as_array().unwrap().iter().filter_map(|total| total["operation"].as_str()).collect();
    assert_eq!(all(&page, "data-operation=\"")[..5], names[..5]);

    // Several runs on one page.
    host(dir, "report --run pythia yxanul neurogen --out all.html").ok();
    let html = fs::read_to_string(dir.join("all.html")).unwrap();
    assert_whole(&html);
    for key in ["val_loss", "tokens"] {
        // Once in the comparison and once in the run's own section.
        let found = all(&html, &format!("data-key=\"{key}\" data-value=\""));
        assert!(found.len() == 6 && found[..3] == found[3..], "{key}: {found:?}");
    }
    let differing = html.split("id=\"differing\"").nth(1).unwrap().split("</table>").next().unwrap();
    assert!(differing.contains("data-key=\"model.family\"") && !differing.contains("data-key=\"seed\""), "{differing}");
}

/// Samples on the way change no weight, are shown after their steps, and are repeated where a run is resumed before
/// them.
#[test]
fn a_page_has_the_samples_of_a_run_as_they_changed() {
    let dir = directory();
    let dir = dir.path();
    for (family, flags) in &families()[..2] {
        let train =
            |more: &str| host(dir, &format!("train {flags} --schedule constant --eval-every 10 --threads 2 {more}"));
        let weights = |run: &str| fs::read(dir.join(run).join("checkpoint-00000030/model.safetensors")).unwrap();
        train(&format!("--steps 30 --out {family}")).ok();
        let sampled = format!("{family}-sampled");
        train(&format!("--samples --steps 20 --save-every 15 --out {sampled}")).ok();
        fs::remove_dir_all(dir.join(&sampled).join("checkpoint-00000020")).unwrap();
        host(dir, &format!("train --resume --steps 30 --json --out {sampled}")).ok();
        assert!(weights(family) == weights(&sampled), "{family}");
        host(dir, &format!("report --run {sampled} --out page.html")).ok();
        let html = fs::read_to_string(dir.join("page.html")).unwrap();
        assert_eq!(all(&html, "<pre class=\"sample\" data-step=\""), ["10", "20", "30"], "{family}");
        let texts: Vec<_> =
            html.split("<pre class=\"sample\"").skip(1).map(|rest| rest.split("</pre>").next()).collect();
        assert!(texts[0] != texts[2], "{family}: {texts:?}");
    }
}

#[test]
fn whatever_a_run_has_written_is_text() {
    let dir = directory();
    let dir = dir.path();
    let words = "<script>alert(1)</script> ]]> \"quoted\" it's <!-- <img/src=x> </pre> &amp;";
    // Different documents with few words.
    let text: String = (1..=60).map(|n| format!("{words} ").repeat(n) + ".\n\n").collect();
    fs::write(dir.join("<b>'x'\".txt"), text).unwrap();
    let run = "run <i>\" ]]>";
    let flags = format!("train {TINY} --steps 5 --tokenizer word --baseline-tokens 0");
    let flags = flags.replace("--baseline-tokens 20000", "");
    host_with(dir, &flags, &["--data", "<b>'x'\".txt", "--out", run]).ok();
    host_with(dir, "report --out page.html", &["--run", run]).ok();
    let html = fs::read_to_string(dir.join("page.html")).unwrap();
    assert_whole(&html);
    for raw in ["<script", "<img", "<!-- ", "]]>", "<b>'", "<i>\"", "&amp;amp;amp;"] {
        assert!(!html.contains(raw), "{raw}");
    }
    let sample = html.split("class=\"sample\"").nth(1).unwrap().split("</pre>").next().unwrap();
    assert!(sample.contains("&lt;") && !sample.contains('<'), "{sample}");
    assert!(html.contains("&lt;b&gt;&#x27;x&#x27;&quot;.txt"));
}

#[test]
fn bad_input_is_a_line_and_nothing_is_half_written() {
    let dir = directory();
    let dir = dir.path();
    host(dir, &format!("train --json {TINY} --steps 3 --out run")).ok();
    let files = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    fs::create_dir(dir.join("there")).unwrap();
    fs::write(dir.join("notes.html"), "mine").unwrap();
    let before = files(dir);
    for (line, says) in [
        ("--run run --out there", "it is a directory"),
        ("--run run --out notes.html", "is no page of HTML"),
        ("--run run --out run/metrics.jsonl", "is no page of HTML"),
        ("--run run --out gone/page.html", "gone/page.html"),
        ("--run run --out /proc/page.html", "/proc/page.html"),
        ("--run gone --out page.html", "gone: no such directory"),
        ("--run there --out page.html", "there: it holds no run"),
        ("--run notes.html --out page.html", "it is no directory"),
        ("--run run/checkpoint-00000003 --out page.html", "give its run, --run run"),
        ("--run run", "--out"),
        ("--out page.html", "--run"),
    ] {
        host(dir, &format!("report {line}")).refused(2, &[says]);
        assert_eq!(files(dir), before, "{line}");
    }
    // For a run that is killed while it writes a line, and for a damaged one.
    let metrics = dir.join("run/metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, &whole[..whole.len() - 20]).unwrap();
    host(dir, "report --run run --out page.html").ok();
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains("The last line of metrics.jsonl is cut"));
    fs::write(&metrics, whole.replacen('{', "(", 1)).unwrap();
    host(dir, "report --run run --out page.html").refused(2, &["metrics.jsonl: line 1 is no object"]);
    // The previous page stays, and a new one replaces it.
    assert_eq!(fs::read_to_string(dir.join("page.html")).unwrap(), page);
    fs::write(&metrics, whole).unwrap();
    host(dir, "report --run run --out page.html").ok();
    assert_ne!(fs::read_to_string(dir.join("page.html")).unwrap(), page);
    // A resumed run adds its sessions, and its final figures are those of the earlier end.
    host(dir, "train --json --resume --out run --steps 5").ok();
    host(dir, "report --run run --out page.html").ok();
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains("data-key=\"sessions\" data-value=\"2\"") && page.contains("5 of 5"), "{page}");
}
