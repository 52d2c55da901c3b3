//! NCCL, loaded where several ranks share a run. The functions are those of nccl.h, version 2.
//!
//! Only its sends and receives are used: our own kernels add, in the order of the ranks.

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
    /// The device's, which waits for all messages.
    stream: sys::CUstream,
    watch: Option<Watch>,
}

/// What a watch shares of it: the library, and its handle until it is left.
struct End {
    nccl: Nccl,
    comm: AtomicPtr<c_void>,
}

/// Bytes on their way from or to another rank: its number, the address here, and how many.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub rank: u32,
    pub address: u64,
    pub bytes: u64,
}

/// Folders where Python packages keep the library.
fn folders() -> Vec<PathBuf> {
    let roots = std::env::var_os("VIRTUAL_ENV").map(|root| PathBuf::from(root).join("lib"));
    let roots = roots.into_iter().chain(["/usr/local/lib".into(), "/usr/lib".into()]);
    let pythons = roots.flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten());
    let packages = pythons.flat_map(|p| ["site-packages", "dist-packages"].map(|name| p.path().join(name)));
    packages.map(|packages| packages.join("nvidia/nccl/lib")).filter(|folder| folder.is_dir()).collect()
}

fn open() -> Result<Library, String> {
    // A stand-in for the driver brings its own; NVIDIA's needs NVIDIA's.
    if let Ok(driver) = capful_driver::load() {
        // SAFETY: loaded already; only whether it has the function is asked.
        let library = unsafe { Library::new(driver) }.map_err(|e| e.to_string())?;
        // SAFETY: as above.
        if unsafe { library.get::<GroupFn>(b"ncclGroupStart\0") }.is_ok() {
            return Ok(library);
        }
    }
    let named = LIBRARIES.iter().map(PathBuf::from);
    let mut why = None;
    for name in named.chain(folders().into_iter().map(|folder| folder.join(LIBRARIES[0]))) {
        // SAFETY: NVIDIA's library; its initialisers are its own.
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
    /// There is none.
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
        // SAFETY: the library's own text of a status, which lives for ever.
        let text = unsafe { (self.error)(status) };
        let code = if text.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: a string of the library's.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(CudaError::Driver { what, code })
    }

    /// An id that all ranks of a group begin with: rank 0 makes it.
    ///
    /// # Errors
    /// What the library says.
    pub fn id(&self) -> Result<[u8; ID], CudaError> {
        let mut id = UniqueId([0; ID]);
        // SAFETY: a place for the id.
        self.check("ncclGetUniqueId", unsafe { (self.unique_id)(&mut id) })?;
        Ok(id.0)
    }

    /// Joins the group of `id` on the current context, whose messages `stream` waits for in the end; waits for all ranks. A wait that is
    /// overdue for `watch` is aborted.
    ///
    /// # Errors
    /// What the library says.
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
        // SAFETY: a place for the handle; the current context is the device's.
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
    /// The handle, once.
    fn take(&self) -> Option<Comm> {
        Some(self.comm.swap(ptr::null_mut(), Ordering::AcqRel)).filter(|comm| !comm.is_null())
    }

    /// Ends what is under way, whatever it waits for.
    fn abort(&self) {
        if let Some(comm) = self.take() {
            // SAFETY: a handle that nobody leaves but who took it. A failure leaves nothing to do.
            unsafe { (self.nccl.abort)(comm) };
        }
    }
}

impl Communicator {
    /// Runs what waits for the GPU, which waits for other ranks' where they send to each other.
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        match &self.watch {
            Some(watch) => watch.wait_for_gpu(wait),
            None => wait(),
        }
    }

    /// What ends the messages under way, on any thread.
    pub fn aborts(&self) -> impl FnOnce() + Send + use<> {
        let end = Arc::clone(&self.end);
        move || end.abort()
    }

    /// Queues messages on `stream`, all of them at once: none waits for another one. The first ones to a rank wait until it takes part.
    ///
    /// # Errors
    /// What the library says.
    pub fn exchange(&self, stream: sys::CUstream, sends: &[Message], receives: &[Message]) -> Result<(), CudaError> {
        self.wait(|| self.queue(stream, sends, receives))
    }

    fn queue(&self, stream: sys::CUstream, sends: &[Message], receives: &[Message]) -> Result<(), CudaError> {
        let nccl = &self.end.nccl;
        let (comm, stream) = (self.end.comm.load(Ordering::Acquire), stream.cast());
        // SAFETY: no arguments.
        nccl.check("ncclGroupStart", unsafe { (nccl.group_start)() })?;
        let mut done = Ok(());
        for Message { rank, address, bytes } in sends.iter().filter(|message| message.bytes > 0) {
            // SAFETY: bytes of the arena, which outlives the communicator; one of the device's streams.
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
        // SAFETY: ends what was begun above, whatever happened between.
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
        // SAFETY: the device's own stream, which outlives this.
        let over = unsafe { sys::cuStreamQuery(self.stream) } == sys::cudaError_enum::CUDA_SUCCESS;
        // Destroying waits for messages under way, which after a failure may never end.
        let leave = if over { nccl.destroy } else { nccl.abort };
        // SAFETY: made by `join` and left once. A failure leaves nothing to do.
        self.wait(|| unsafe { leave(comm) });
    }
}
