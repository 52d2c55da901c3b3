use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::messages::message;
use super::*;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Value>,
    asks: bool,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Fixture {
    templates: BTreeMap<String, String>,
    cases: Vec<Case>,
}

fn fixture() -> Fixture {
    let json = include_str!("../../../tests/fixtures/chat_templates.json");
    serde_json::from_str(json).unwrap()
}

fn chat(name: &str) -> ChatTemplate {
    ChatTemplate::new(name, &fixture().templates[name], ["<s>", "</s>"]).unwrap()
}

/// The parts of a conversation's text, each with whether it is an answer.
fn parts(template: &ChatTemplate, messages: &[Value]) -> Vec<(bool, String)> {
    let Rendered { text, parts, .. } = template.answers(messages).unwrap();
    let mut begin = 0;
    let parts = parts.iter().map(|part| {
        let piece = text[begin..part.end].to_owned();
        begin = part.end;
        (part.answer, piece)
    });
    let parts = parts.collect();
    assert_eq!(begin, text.len());
    parts
}

#[test]
fn templates_make_what_jinja_makes_of_them() {
    let Fixture { cases, .. } = fixture();
    assert!(cases.len() > 40 && cases.iter().filter(|case| case.text.is_none()).count() > 2);
    for Case { template, messages, asks, text } in cases {
        let rendered = chat(&template).render(&messages, asks);
        assert_eq!(rendered.as_ref().ok(), text.as_ref(), "{template}: {messages:?}");
    }
}

#[test]
fn answers_are_found_with_what_ends_them_and_without_the_white_space_behind() {
    let messages: Vec<Value> =
        [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d ")].map(|(r, c)| message(r, c)).into();
    let part = |answer, text: &str| (answer, text.to_owned());
    assert_eq!(
        parts(&chat("marked"), &messages),
        [
            part(false, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"),
            part(true, "b<|im_end|>"),
            part(false, "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"),
            part(true, "d<|im_end|>"),
        ]
    );
    assert_eq!(
        parts(&chat("brackets"), &messages),
        [part(false, "<s>[Q] a [/Q]"), part(true, " b </s>"), part(false, "[Q] c [/Q]"), part(true, " d </s>"),]
    );
    assert_eq!(
        parts(&ChatTemplate::default(), &messages),
        [
            part(false, "<|user|>\na<eos>\n<|assistant|>\n"),
            part(true, "b<eos>"),
            part(false, "\n<|user|>\nc<eos>\n<|assistant|>\n"),
            part(true, "d <eos>"),
        ]
    );
    // Messages after the last answer are left out.
    assert_eq!(parts(&chat("marked"), &messages[..3]), parts(&chat("marked"), &messages[..2]));
}

#[test]
fn an_answer_that_is_written_otherwise_later_is_no_answer() {
    let source = "{% for m in messages %}{{ m.content if loop.last else m.content.split('!')[-1] }}.{% endfor %}";
    let template = ChatTemplate::new("thoughts", source, ["", ""]).unwrap();
    let messages: Vec<Value> =
        [("user", "a"), ("assistant", "x!b"), ("user", "c"), ("assistant", "y!d")].map(|(r, c)| message(r, c)).into();
    assert_eq!(parts(&template, &messages), [(false, "a.b.c.".to_owned()), (true, "y!d.".to_owned())]);
    assert_eq!(template.answers(&messages).unwrap().rewritten, 1);

    let template = ChatTemplate::new("back", "{% for m in messages | reverse %}{{ m.content }}{% endfor %}", ["", ""]);
    let error = template.unwrap().answers(&messages[..2]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the chat template back writes the messages before the last answer otherwise when the answer is there"
    );
}

#[test]
fn what_ends_an_answer_is_what_is_written_behind_it() {
    let bare = "{% for m in messages %}{{ '\\n' ~ m.role ~ ': ' ~ m.content }}{% endfor %}";
    let bare = ChatTemplate::new("bare", bare, ["", ""]).unwrap();
    for (template, ending) in [
        (chat("marked"), "<|im_end|>"),
        (chat("brackets"), "</s>"),
        (ChatTemplate::default(), "<eos>"),
        (bare, "user:"),
    ] {
        assert_eq!(template.ending().unwrap(), ending);
    }
}

#[test]
fn a_template_that_cannot_run_is_named_with_its_line() {
    for (source, expected) in [
        ("a\n{% for x in %}", "the chat template t cannot be used: unexpected end of block"),
        ("{{ 'a' | nothing }}", "the chat template t refuses it: filter nothing is unknown"),
        ("{{ raise_exception('no system\nmessages') }}", "the chat template t refuses it: no system messages"),
        (
            "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
            "the chat template t refuses it: ",
        ),
    ] {
        let made = ChatTemplate::new("t", source, ["", ""]);
        let error = made.and_then(|template| template.render(&[message("user", "a")], false)).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{source}: {error}");
    }
}
