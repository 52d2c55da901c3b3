//! The functions that cust 0.3.2 refers to, and those that capful-host calls through `cust::sys`.

use super::TABLE;

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
            /// A jump: arguments and result stay where the caller and the driver put them.
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
            "jmp qword ptr [rip + {table} + 8 * {index}]",
            table = sym TABLE,
            index = const $index as usize,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($index:expr) => {
        core::arch::naked_asm!(
            "adrp x16, {table}",
            "add x16, x16, :lo12:{table}",
            "ldr x16, [x16, #(8 * {index})]",
            "br x16",
            table = sym TABLE,
            index = const $index as usize,
        )
    };
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
    cuStreamSynchronize
    cuStreamWaitEvent
    cuSurfObjectCreate
    cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc
    cuTexObjectCreate
    cuTexObjectDestroy
    cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
}
