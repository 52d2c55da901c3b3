//! Turns a panic into an error: in a library that reads damaged data, or in a thread that other threads rely on.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`; if `f` panics, returns the panic's message and prints nothing. The caller must then drop what `f` was
/// working on.
pub fn contain<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        // Panics outside `contain` are printed as usual.
        panic::set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                usual(info);
            }
        }));
    });
    let outer = CONTAINED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    CONTAINED.set(outer);
    result.map_err(message)
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "damaged".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_message_and_anything_else_its_value() {
        assert_eq!(contain(|| 3), Ok(3));
        assert_eq!(contain(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        let n = 5;
        assert_eq!(contain(|| panic!("number {n}")), Err::<(), _>("number 5".to_owned()));
        assert!(!CONTAINED.get());
    }
}
