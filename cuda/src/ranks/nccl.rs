//! NCCL, loaded when several ranks share a run. The functions are those of nccl.h, version 2.
//!
//! Only NCCL's sends and receives are used: this program's own kernels add, in the order of the ranks.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use cust::sys;
use libloading::Library;

use crate::error::CudaError;
use capful_ranks::watch::Watch;

const LIBRARIES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Bytes of a unique id.
pub const ID: usize = 128;
/// ncclUint8.
const BYTES: i32 = 1;

type Comm = *mut c_void;
type Status = i32;

/// An ncclUniqueId, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID]);

type GetUniqueIdFn = unsafe extern "C" fn(*mut UniqueId) -> Status;
type InitRankFn = unsafe extern "C" fn(*mut Comm, i32, UniqueId, i32) -> Status;
type LeaveFn = unsafe extern "C" fn(Comm) -> Status;
type GroupFn = unsafe extern "C" fn() -> Status;
type SendFn = unsafe extern "C" fn(*const c_void, usize, i32, i32, Comm, *mut c_void) -> Status;
type ReceiveFn = unsafe extern "C" fn(*mut c_void, usize, i32, i32, Comm, *mut c_void) -> Status;
type ErrorFn = unsafe extern "C" fn(Status) -> *const c_char;

/// The library.
pub struct Nccl {
    unique_id: GetUniqueIdFn,
    init_rank: InitRankFn,
    destroy: LeaveFn,
    abort: LeaveFn,
    group_start: GroupFn,
    group_end: GroupFn,
    send: SendFn,
    receive: ReceiveFn,
    error: ErrorFn,
    _library: Library,
}

/// This rank's end of a group of GPUs.
pub struct Communicator {
    end: Arc<End>,
    /// The device's stream, which waits for all messages.
    stream: sys::CUstream,
    watch: Option<Watch>,
}

/// The part that a watch shares: the library, and the communicator's handle until it is released.
struct End {
    nccl: Nccl,
    comm: AtomicPtr<c_void>,
}

/// Bytes that are sent to or received from another rank: the rank's number, the local address, and the number of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub rank: u32,
    pub address: u64,
    pub bytes: u64,
}

/// Folders where Python packages install the library.
fn folders() -> Vec<PathBuf> {
    let roots = std::env::var_os("VIRTUAL_ENV").map(|root| PathBuf::from(root).join("lib"));
    let roots = roots.into_iter().chain(["/usr/local/lib".into(), "/usr/lib".into()]);
    let pythons = roots.flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten());
    let packages = pythons.flat_map(|p| ["site-packages", "dist-packages"].map(|name| p.path().join(name)));
    packages.map(|packages| packages.join("nvidia/nccl/lib")).filter(|folder| folder.is_dir()).collect()
}

fn open() -> Result<Library, String> {
    // A simulated driver contains the library's functions itself; NVIDIA's driver needs NVIDIA's library.
    if let Ok(driver) = capful_driver::load() {
        // SAFETY: already loaded; only checks whether the function exists.
        let library = unsafe { Library::new(driver) }.map_err(|e| e.to_string())?;
        // SAFETY: as above.
        if unsafe { library.get::<GroupFn>(b"ncclGroupStart\0") }.is_ok() {
            return Ok(library);
        }
    }
    let named = LIBRARIES.iter().map(PathBuf::from);
    let mut why = None;
    for name in named.chain(folders().into_iter().map(|folder| folder.join(LIBRARIES[0]))) {
        // SAFETY: NVIDIA's library, with NVIDIA's initialisers.
        match unsafe { Library::new(&name) } {
            Ok(library) => return Ok(library),
            Err(e) => drop(why.get_or_insert(e.to_string())),
        }
    }
    Err(why.unwrap_or_default())
}

impl Nccl {
    /// Opens the library.
    ///
    /// # Errors
    /// The library is missing.
    pub fn load() -> Result<Nccl, CudaError> {
        let library = open().map_err(CudaError::NoNccl)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: declared above as in nccl.h.
                *unsafe { library.get($name) }.map_err(|e| CudaError::NoNccl(e.to_string()))?
            };
        }
        Ok(Nccl {
            unique_id: function!(b"ncclGetUniqueId\0"),
            init_rank: function!(b"ncclCommInitRank\0"),
            destroy: function!(b"ncclCommDestroy\0"),
            abort: function!(b"ncclCommAbort\0"),
            group_start: function!(b"ncclGroupStart\0"),
            group_end: function!(b"ncclGroupEnd\0"),
            send: function!(b"ncclSend\0"),
            receive: function!(b"ncclRecv\0"),
            error: function!(b"ncclGetErrorString\0"),
            _library: library,
        })
    }

    fn check(&self, what: &'static str, status: Status) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library's own text for a status, which is static.
        let text = unsafe { (self.error)(status) };
        let code = if text.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: a string of the library.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(CudaError::Driver { what, code })
    }

    /// An id with which all ranks of a group start: rank 0 creates it.
    ///
    /// # Errors
    /// An error of the library.
    pub fn id(&self) -> Result<[u8; ID], CudaError> {
        let mut id = UniqueId([0; ID]);
        // SAFETY: a pointer to the id.
        self.check("ncclGetUniqueId", unsafe { (self.unique_id)(&mut id) })?;
        Ok(id.0)
    }

    /// Joins the group of `id` in the current context; waits for all ranks. `stream` waits for the group's messages in
    /// the end. `watch` aborts a wait that takes too long.
    ///
    /// # Errors
    /// An error of the library.
    pub fn join(
        self,
        id: [u8; ID],
        [rank, count]: [u32; 2],
        stream: sys::CUstream,
        watch: Option<Watch>,
    ) -> Result<Communicator, CudaError> {
        let end = Arc::new(End { nccl: self, comm: AtomicPtr::new(ptr::null_mut()) });
        let joined = Communicator { end, stream, watch };
        let (mut comm, nccl) = (ptr::null_mut(), &joined.end.nccl);
        // SAFETY: a pointer to the handle; the current context is the device's.
        let status = joined.wait(|| unsafe { (nccl.init_rank)(&mut comm, count as i32, UniqueId(id), rank as i32) });
        nccl.check("ncclCommInitRank", status)?;
        joined.end.comm.store(comm, Ordering::Release);
        if let Some(watch) = &joined.watch {
            watch.free_by(Some(Box::new(joined.aborts())));
        }
        Ok(joined)
    }
}

impl End {
    /// Takes the handle; later calls return `None`.
    fn take(&self) -> Option<Comm> {
        Some(self.comm.swap(ptr::null_mut(), Ordering::AcqRel)).filter(|comm| !comm.is_null())
    }

    /// Ends all messages under way, whatever they wait for.
    fn abort(&self) {
        if let Some(comm) = self.take() {
            // SAFETY: only the thread that took the handle releases it. A failure cannot be handled.
            unsafe { (self.nccl.abort)(comm) };
        }
    }
}

impl Communicator {
    /// Runs a function that waits for the GPU, which may wait for the GPUs of other ranks.
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        match &self.watch {
            Some(watch) => watch.wait_for_gpu(wait),
            None => wait(),
        }
    }

    /// A function that aborts the messages under way, from any thread.
    pub fn aborts(&self) -> impl FnOnce() + Send + use<> {
        let end = Arc::clone(&self.end);
        move || end.abort()
    }

    /// Queues messages on `stream`, all at the same time: none waits for another. The first messages to a rank wait
    /// until that rank joins in.
    ///
    /// # Errors
    /// An error of the library.
    pub fn exchange(&self, stream: sys::CUstream, sends: &[Message], receives: &[Message]) -> Result<(), CudaError> {
        self.wait(|| self.queue(stream, sends, receives))
    }

    fn queue(&self, stream: sys::CUstream, sends: &[Message], receives: &[Message]) -> Result<(), CudaError> {
        let nccl = &self.end.nccl;
        let (comm, stream) = (self.end.comm.load(Ordering::Acquire), stream.cast());
        // SAFETY: takes no arguments.
        nccl.check("ncclGroupStart", unsafe { (nccl.group_start)() })?;
        let mut done = Ok(());
        for Message { rank, address, bytes } in sends.iter().filter(|message| message.bytes > 0) {
            // SAFETY: bytes of the arena, which outlives the communicator; a stream of the device.
            let status =
                unsafe { (nccl.send)(*address as *const c_void, *bytes as usize, BYTES, *rank as i32, comm, stream) };
            done = done.and(nccl.check("ncclSend", status));
        }
        for Message { rank, address, bytes } in receives.iter().filter(|message| message.bytes > 0) {
            // SAFETY: as above; no other message of the group touches these bytes.
            let status =
                unsafe { (nccl.receive)(*address as *mut c_void, *bytes as usize, BYTES, *rank as i32, comm, stream) };
            done = done.and(nccl.check("ncclRecv", status));
        }
        // SAFETY: ends the group that was started above, even after an error.
        done.and(nccl.check("ncclGroupEnd", unsafe { (nccl.group_end)() }))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.free_by(None);
        }
        let Some(comm) = self.end.take() else { return };
        let End { nccl, .. } = &*self.end;
        // SAFETY: the device's own stream, which outlives the communicator.
        let over = unsafe { sys::cuStreamQuery(self.stream) } == sys::cudaError_enum::CUDA_SUCCESS;
        // Destroying waits for messages under way, which may never end after a failure.
        let leave = if over { nccl.destroy } else { nccl.abort };
        // SAFETY: created by `join` and released once. A failure cannot be handled.
        self.wait(|| unsafe { leave(comm) });
    }
}
