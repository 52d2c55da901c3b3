//! The CUDA driver's functions under their own names, resolved at run time.
//!
//! cust expects the linker to find `cuInit` and the other functions. Here each of them is a call through a table, which
//! [`load`] fills from the driver's library. So the binary needs no CUDA to be built or to start, and can report what
//! is missing. Before `load`, and for functions that the library lacks, calls return `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! cust declares the results of CUDA 11 as an enum, and any other value in it would be undefined behaviour. Later
//! result codes are replaced with `CUDA_ERROR_UNKNOWN`; [`last_code`] has the original code.

mod names;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// The environment variable that names a library to load instead of the driver's own.
pub const VARIABLE: &str = "CAPFUL_CUDA_DRIVER";

#[cfg(unix)]
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARIES: [&str; 1] = ["nvcuda.dll"];

/// The initial value of every entry of the table.
extern "C" fn missing() -> u32 {
    const NOT_INITIALIZED: u32 = 3;
    NOT_INITIALIZED
}

/// The replacement of a result that cust's enum lacks.
pub const UNKNOWN: u32 = 999;

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// The last result of this thread's calls that was not success, as the driver returned it.
pub fn last_code() -> u32 {
    LAST.get()
}

/// Records a call's result, and returns one that cust_raw 0.11.3 knows.
extern "C" fn settle(code: u32) -> u32 {
    LAST.set(code);
    match code {
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400..=401 | 500 | 600 | 700..=705 => code,
        708..=720 | 800..=809 | 900..=911 => code,
        _ => UNKNOWN,
    }
}

/// The targets of the calls.
static TABLE: [AtomicPtr<c_void>; names::COUNT] =
    [const { AtomicPtr::new(missing as extern "C" fn() -> u32 as *mut c_void) }; names::COUNT];

/// The loaded library, which is never unloaded.
static LOADED: OnceLock<Result<(Library, String), String>> = OnceLock::new();

/// Loads the library that `CAPFUL_CUDA_DRIVER` names, or the driver's own; once in each process, whatever later calls
/// request. Returns the name of the loaded library.
///
/// # Errors
/// The reason why it could not be loaded, as reported by the system's loader.
pub fn load() -> Result<&'static str, &'static str> {
    load_or(None)
}

/// As [`load`]; falls back to `otherwise` if neither library is found.
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
            // SAFETY: the driver's library, or a replacement that the user names; loading it runs only its own
            // initialisers.
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
        fn cuLaunchKernel(
            a: u64,
            b: u64,
            c: u64,
            d: u64,
            e: u64,
            f: u64,
            g: u64,
            h: u64,
            i: u64,
            j: u64,
            k: u64,
        ) -> u32;
    }

    #[rustfmt::skip]
    #[allow(clippy::too_many_arguments)]
    extern "C" fn digits(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64, j: u64, k: u64) -> u32 {
        let right = [a, b, c, d, e, f, g, h, i, j, k] == std::array::from_fn(|at| 1 << at);
        if right { 912 } else { 1 }
    }

    #[test]
    fn a_call_goes_where_the_table_says() {
        // Every argument arrives, and a result that cust's enum lacks is replaced.
        let launch = names::NAMES.iter().position(|n| *n == "cuLaunchKernel\0").expect("a function of the table");
        TABLE[launch].store(digits as *mut c_void, Ordering::Release);
        // SAFETY: `digits` above.
        assert_eq!(unsafe { cuLaunchKernel(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) }, UNKNOWN);
        assert_eq!(last_code(), 912);
        TABLE[launch].store(missing as extern "C" fn() -> u32 as *mut c_void, Ordering::Release);

        let mut version = 0;
        // SAFETY: the pointer is to one integer.
        assert_eq!(unsafe { cuDriverGetVersion(&mut version) }, 3);
        assert!(!has("cuDriverGetVersion"));
        assert_eq!(last_code(), 3);
        // Success or an error, and the same result the second time.
        assert_eq!(load(), load());
    }

    #[test]
    fn results_that_cust_lacks_become_unknown() {
        for (code, settled) in [(46, UNKNOWN), (719, 719), (912, UNKNOWN), (911, 911), (u32::MAX, UNKNOWN)] {
            assert_eq!(settle(code), settled);
            assert_eq!(last_code(), code);
        }
    }
}
