//! The energy counter of a GPU in the driver's management library (NVML). The functions are those of nvml.h.

use std::cell::OnceCell;
use std::ffi::{CString, c_char, c_void};
use std::ptr;

use cust::device::Device;
use cust::sys::CUdevice_attribute_enum as Attribute;
use libloading::Library;

use super::error::CudaError;
use super::probe::attribute;

/// Installed with the driver.
const LIBRARY: &str = "libnvidia-ml.so.1";

type Handle = *mut c_void;
type Status = i32;
type ByAddressFn = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
type EnergyFn = unsafe extern "C" fn(Handle, *mut u64) -> Status;
type PlainFn = unsafe extern "C" fn() -> Status;

/// The counter of one GPU.
pub struct Counter {
    energy: EnergyFn,
    shutdown: PlainFn,
    gpu: Handle,
    _library: Library,
}

/// A GPU's address on its bus, in the library's notation.
fn address(device: Device) -> Result<CString, CudaError> {
    let [domain, bus, slot] = [
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    ]
    .map(|which| attribute(device, which));
    Ok(CString::new(format!("{:08x}:{:02x}:{:02x}.0", domain?, bus?, slot?)).unwrap_or_default())
}

/// The library. A simulated driver contains these functions itself: the real library does not know the simulated GPU.
fn open() -> Option<Library> {
    // SAFETY: already loaded.
    let driver = unsafe { Library::new(capful_driver::load().ok()?) }.ok()?;
    // SAFETY: only checks whether the function exists.
    match unsafe { driver.get::<PlainFn>(b"nvmlInit_v2\0") }.is_ok() {
        true => Some(driver),
        // SAFETY: NVIDIA's library, with NVIDIA's initialisers.
        false => unsafe { Library::new(LIBRARY) }.ok(),
    }
}

/// The energy of one GPU: the counter is opened when it is first read.
pub(super) struct Meter {
    address: CString,
    counter: OnceCell<Option<Counter>>,
}

impl Meter {
    /// The meter of `device`, closed.
    pub fn of(device: Device) -> Result<Meter, CudaError> {
        Ok(Meter { address: address(device)?, counter: OnceCell::new() })
    }

    /// Joules that the board took since the driver was loaded; nothing where it does not count them.
    pub fn joules(&self) -> Option<f64> {
        self.counter.get_or_init(|| Counter::of(&self.address)).as_ref()?.joules()
    }
}

impl Counter {
    /// The counter of the GPU at `address`; `None` if there is no library, or the GPU has no counter.
    pub fn of(address: &CString) -> Option<Counter> {
        let library = open()?;
        macro_rules! function {
            ($type:ty, $name:literal) => {
                // SAFETY: declared above as in nvml.h.
                *unsafe { library.get::<$type>($name) }.ok()?
            };
        }
        let init = function!(PlainFn, b"nvmlInit_v2\0");
        let shutdown = function!(PlainFn, b"nvmlShutdown\0");
        let find = function!(ByAddressFn, b"nvmlDeviceGetHandleByPciBusId_v2\0");
        let energy = function!(EnergyFn, b"nvmlDeviceGetTotalEnergyConsumption\0");
        // SAFETY: takes no arguments.
        if unsafe { init() } != 0 {
            return None;
        }
        // From here on, dropping the counter shuts the library down.
        let mut counter = Counter { energy, shutdown, gpu: ptr::null_mut(), _library: library };
        // SAFETY: a string, and a pointer to one handle.
        let found = unsafe { find(address.as_ptr(), &mut counter.gpu) };
        (found == 0 && counter.joules().is_some()).then_some(counter)
    }

    /// Joules that the board has used since the driver was loaded.
    pub fn joules(&self) -> Option<f64> {
        let mut millijoules = 0;
        // SAFETY: a handle from the library, and a pointer to one number.
        let read = unsafe { (self.energy)(self.gpu, &mut millijoules) };
        (read == 0).then_some(millijoules as f64 / 1e3)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: takes no arguments; the library was initialised once for this counter.
        unsafe { (self.shutdown)() };
    }
}
