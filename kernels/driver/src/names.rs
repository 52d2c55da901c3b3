//! The functions that cust 0.3.2 refers to, and those that capful-host calls through `cust::sys` or
//! declares itself.

use super::{TABLE, settle};

macro_rules! functions {
    ($($name:ident)*) => {
        /// Indices into the table.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        enum Index { $($name,)* Count }

        /// Entries of the table.
        pub const COUNT: usize = Index::Count as usize;

        /// The functions' names, each with a final zero byte.
        pub const NAMES: [&str; COUNT] = [$(concat!(stringify!($name), "\0"),)*];

        $(
            /// A jump: the arguments stay in the caller's registers and stack.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                jump!(Index::$name)
            }
        )*
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($index:expr) => {
        core::arch::naked_asm!(
            "lea r11, [rip + {table} + 8 * {index}]",
            "jmp {call}",
            table = sym TABLE,
            index = const $index as usize,
            call = sym call,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($index:expr) => {
        core::arch::naked_asm!(
            "adrp x16, {table}",
            "add x16, x16, :lo12:{table}",
            "add x16, x16, #(8 * {index})",
            "b {call}",
            table = sym TABLE,
            index = const $index as usize,
            call = sym call,
        )
    };
}

/// The register of the first argument of [`settle`].
#[cfg(not(windows))]
macro_rules! first_argument {
    () => {
        "mov edi, eax"
    };
}
#[cfg(windows)]
macro_rules! first_argument {
    () => {
        "mov ecx, eax"
    };
}

/// Calls the function whose entry is in r11, with the arguments in registers and a copy of twelve words of the caller's
/// stack: no function needs more, since cuTensorMapEncodeTiled has the most arguments, twelve. A return value other
/// than 0 goes through [`settle`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn call() {
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 96",
        "movups xmm4, [rbp + 16]",
        "movups [rsp], xmm4",
        "movups xmm4, [rbp + 32]",
        "movups [rsp + 16], xmm4",
        "movups xmm4, [rbp + 48]",
        "movups [rsp + 32], xmm4",
        "movups xmm4, [rbp + 64]",
        "movups [rsp + 48], xmm4",
        "movups xmm4, [rbp + 80]",
        "movups [rsp + 64], xmm4",
        "movups xmm4, [rbp + 96]",
        "movups [rsp + 80], xmm4",
        "call qword ptr [r11]",
        "leave",
        first_argument!(),
        "test eax, eax",
        "jne {settle}",
        "ret",
        settle = sym settle,
    )
}

/// As the function above, with the entry in x16.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn call() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "sub sp, sp, #32",
        "ldp x9, x10, [x29, #16]",
        "stp x9, x10, [sp]",
        "ldp x9, x10, [x29, #32]",
        "stp x9, x10, [sp, #16]",
        "ldr x16, [x16]",
        "blr x16",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "cbz w0, 2f",
        "b {settle}",
        "2: ret",
        settle = sym settle,
    )
}

functions! {
    cuArray3DCreate_v2
    cuArray3DGetDescriptor_v2
    cuArrayDestroy
    cuCtxCreate_v2
    cuCtxDestroy_v2
    cuCtxGetApiVersion
    cuCtxGetCacheConfig
    cuCtxGetCurrent
    cuCtxGetDevice
    cuCtxGetFlags
    cuCtxGetLimit
    cuCtxGetSharedMemConfig
    cuCtxGetStreamPriorityRange
    cuCtxPopCurrent_v2
    cuCtxPushCurrent_v2
    cuCtxSetCacheConfig
    cuCtxSetCurrent
    cuCtxSetLimit
    cuCtxSetSharedMemConfig
    cuCtxSynchronize
    cuDestroyExternalMemory
    cuDeviceGet
    cuDeviceGetAttribute
    cuDeviceGetCount
    cuDeviceGetName
    cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxReset_v2
    cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxSetFlags_v2
    cuDeviceTotalMem_v2
    cuDriverGetVersion
    cuEventCreate
    cuEventDestroy_v2
    cuEventElapsedTime
    cuEventQuery
    cuEventRecord
    cuEventRecordWithFlags
    cuEventSynchronize
    cuExternalMemoryGetMappedBuffer
    cuFuncGetAttribute
    cuFuncSetAttribute
    cuFuncSetCacheConfig
    cuFuncSetSharedMemConfig
    cuGetErrorName
    cuGetErrorString
    cuGraphAddKernelNode
    cuGraphCreate
    cuGraphDebugDotPrint
    cuGraphDestroy
    cuGraphExecDestroy
    cuGraphGetEdges
    cuGraphGetNodes
    cuGraphInstantiateWithFlags
    cuGraphInstantiate_v2
    cuGraphKernelNodeGetParams
    cuGraphLaunch
    cuGraphNodeGetType
    cuImportExternalMemory
    cuInit
    cuLaunchHostFunc
    cuLaunchKernel
    cuLaunchKernelEx
    cuLinkAddData_v2
    cuLinkComplete
    cuLinkCreate_v2
    cuLinkDestroy
    cuMemAdvise
    cuMemAllocAsync
    cuMemAllocHost_v2
    cuMemAllocManaged
    cuMemAlloc_v2
    cuMemFreeAsync
    cuMemFreeHost
    cuMemFree_v2
    cuMemGetInfo_v2
    cuMemHostAlloc
    cuMemPrefetchAsync
    cuMemcpy2D_v2
    cuMemcpyAtoH_v2
    cuMemcpyDtoDAsync_v2
    cuMemcpyDtoD_v2
    cuMemcpyDtoHAsync_v2
    cuMemcpyDtoH_v2
    cuMemcpyHtoA_v2
    cuMemcpyHtoDAsync_v2
    cuMemcpyHtoD_v2
    cuMemsetD16Async
    cuMemsetD16_v2
    cuMemsetD32Async
    cuMemsetD32_v2
    cuMemsetD8Async
    cuMemsetD8_v2
    cuModuleGetFunction
    cuModuleGetGlobal_v2
    cuModuleLoad
    cuModuleLoadData
    cuModuleLoadDataEx
    cuModuleUnload
    cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxPotentialBlockSize
    cuStreamBeginCapture_v2
    cuStreamCreate
    cuStreamCreateWithPriority
    cuStreamDestroy_v2
    cuStreamEndCapture
    cuStreamGetFlags
    cuStreamGetPriority
    cuStreamQuery
    cuStreamSynchronize
    cuStreamWaitEvent
    cuSurfObjectCreate
    cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc
    cuTensorMapEncodeTiled
    cuTexObjectCreate
    cuTexObjectDestroy
    cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
}
