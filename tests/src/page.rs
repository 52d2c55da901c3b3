//! The figures of a run's page.

/// Every value of an attribute after the text `before`.
pub fn all<'a>(html: &'a str, before: &str) -> Vec<&'a str> {
    html.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The number of a key, which occurs once.
///
/// # Panics
/// If it does not, or is no number.
#[track_caller]
pub fn number(html: &str, key: &str) -> f64 {
    let found = all(html, &format!("data-key=\"{key}\" data-value=\""));
    assert_eq!(found.len(), 1, "{key}: {found:?}");
    found[0].parse().unwrap_or_else(|_| panic!("{key} is {}", found[0]))
}
