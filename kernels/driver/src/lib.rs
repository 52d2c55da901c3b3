//! The CUDA driver's functions by their own names, found at run time.
//!
//! cust expects `cuInit` and its like from the linker. Here each of them is a jump through a table, which
//! [`load`] fills from the driver's library. So the binary needs no CUDA to be built or to start, and can say in
//! words what is missing. Before `load`, and where a library lacks a function, calls return
//! `CUDA_ERROR_NOT_INITIALIZED`.

mod names;

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// Names a library to be used instead of the driver's own.
pub const VARIABLE: &str = "CAPFUL_CUDA_DRIVER";

#[cfg(unix)]
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARIES: [&str; 1] = ["nvcuda.dll"];

/// What every entry of the table is at first.
extern "C" fn missing() -> u32 {
    const NOT_INITIALIZED: u32 = 3;
    NOT_INITIALIZED
}

/// Where the calls go.
static TABLE: [AtomicPtr<c_void>; names::COUNT] =
    [const { AtomicPtr::new(missing as extern "C" fn() -> u32 as *mut c_void) }; names::COUNT];

/// The library that was loaded, for good.
static LOADED: OnceLock<Result<(Library, String), String>> = OnceLock::new();

/// Loads the library that `CAPFUL_CUDA_DRIVER` names, else the driver's own; once a process, whatever is asked later.
/// Gives the name of what was loaded.
///
/// # Errors
/// Why it could not be loaded, in the words of the system's loader.
pub fn load() -> Result<&'static str, &'static str> {
    load_or(None)
}

/// As [`load`]; where neither is there, `otherwise`.
///
/// # Errors
/// As [`load`].
pub fn load_or(otherwise: Option<&str>) -> Result<&'static str, &'static str> {
    let loaded = LOADED.get_or_init(|| {
        let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
        let mut candidates = match &named {
            Some(name) => vec![name.as_str()],
            None => LIBRARIES.to_vec(),
        };
        candidates.extend(otherwise.filter(|_| named.is_none()));
        let mut why = None;
        for name in candidates {
            // SAFETY: the driver's library, or one that the user names to stand for it; its initialisers are its own.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    fill(&library);
                    return Ok((library, name.to_owned()));
                }
                Err(e) => {
                    why.get_or_insert(e.to_string());
                }
            }
        }
        Err(why.unwrap_or_default())
    });
    loaded.as_ref().map(|(_, name)| name.as_str()).map_err(String::as_str)
}

fn fill(library: &Library) {
    for (entry, name) in TABLE.iter().zip(names::NAMES) {
        // SAFETY: only the address is taken; cust_raw declares the function's type.
        if let Ok(symbol) = unsafe { library.get::<*mut c_void>(name.as_bytes()) } {
            entry.store(*symbol, Ordering::Release);
        }
    }
}

/// Whether the loaded library has the driver's function `name`.
pub fn has(name: &str) -> bool {
    let index = names::NAMES.iter().position(|n| n.trim_end_matches('\0') == name);
    index.is_some_and(|i| TABLE[i].load(Ordering::Acquire) != missing as extern "C" fn() -> u32 as *mut c_void)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn cuDriverGetVersion(version: *mut i32) -> u32;
    }

    #[test]
    fn a_call_without_a_library_returns_an_error() {
        let mut version = 0;
        // SAFETY: a place for one integer.
        assert_eq!(unsafe { cuDriverGetVersion(&mut version) }, 3);
        assert!(!has("cuDriverGetVersion"));
        // An answer or a reason, and the same one again.
        assert_eq!(load(), load());
    }
}
