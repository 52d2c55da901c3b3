//! Compiles every `cuda/*/*.cu` through nvcc into one fat binary each, and the stand-in driver through g++, unless
//! their inputs are unchanged. Declares the arguments of kernels for the host, with and without nvcc.

mod arguments;

use std::env;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The command that installs nvcc without a CUDA toolkit.
const PIP: &str = "python3 -m pip install --no-deps --target .cuda-toolchain nvidia-cuda-nvcc==13.0.88 \
                   nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
                   nvidia-cuda-cccl==13.0.85";

/// Targets with machine code; PTX for GPUs between them, and for 10.x and 12.x, for which the driver compiles.
const TARGETS: &str = "75 80 86 89 90a ptx75 ptx100 ptx120";

/// Environment variable with additional options of nvcc.
const NVCC_FLAGS: &str = "NVCC_APPEND_FLAGS";

/// Clippy runs nothing, so it gets empty kernels: compiling takes minutes, and clippy shares no outputs with other
/// builds.
const LINTER: &str = "RUSTC_WORKSPACE_WRAPPER";

fn main() {
    println!("cargo:rerun-if-changed=cuda");
    println!("cargo:rerun-if-changed=stand_in");
    for name in ["NVCC", NVCC_FLAGS, "CUDA_PATH", "CUDA_HOME", "CXX", "CAPFUL_CUDA_TARGETS", LINTER] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let kernels = || if env::var_os("CARGO_FEATURE_CUDA").is_some() { build() } else { Ok(()) };
    if let Err(message) = declare_arguments().and_then(|()| kernels()) {
        println!("cargo:error={}", message.replace('\n', " "));
        std::process::exit(1);
    }
}

fn out() -> Result<PathBuf, String> {
    env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| "OUT_DIR is not set".to_owned())
}

fn declare_arguments() -> Result<(), String> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()));
    let paths = [files("cuda", "cu")?, files("cuda", "cuh")?].concat();
    let texts = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let code = arguments::declare(texts.iter().map(String::as_str))?;
    std::fs::write(out()?.join("arguments.rs"), code).map_err(|e| e.to_string())
}

fn build() -> Result<(), String> {
    let out = out()?;
    let nvcc = find_nvcc()?;
    let (mut sources, headers) = (files("cuda", "cu")?, files("cuda", "cuh")?);
    if env::var_os("CARGO_FEATURE_NEUROGEN").is_none() {
        sources.retain(|source| !source.starts_with("cuda/spiking"));
    }
    let targets = env::var("CAPFUL_CUDA_TARGETS").unwrap_or_else(|_| TARGETS.into());
    let mut arguments = Vec::new();
    for target in targets.split_whitespace() {
        arguments.push("-gencode".to_owned());
        arguments.push(match target.strip_prefix("ptx") {
            Some(number) => format!("arch=compute_{number},code=compute_{number}"),
            None => format!("arch=compute_{target},code=sm_{target}"),
        });
    }
    let mut jobs: Vec<Job> = Vec::new();
    for source in &sources {
        let mut job = Command::new(&nvcc);
        job.args(["-fatbin", "-O3", "-std=c++17", "-Werror", "all-warnings"]).args(&arguments);
        let made = out.join(stem(source)).with_extension("fatbin");
        job.arg("-o").arg(&made).arg(source);
        jobs.extend(Job::of(job, made, &[&headers[..], std::slice::from_ref(source)].concat())?);
    }
    let mut stand_in = String::new();
    if env::var_os("CARGO_FEATURE_STAND_IN").is_some() {
        let library = out.join("libcuda_cpu.so");
        let parts = files("stand_in", "cpp")?;
        let mut job = Command::new(env::var_os("CXX").unwrap_or_else(|| "g++".into()));
        job.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]);
        if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
            // Shared memory is thread-local; this is the default model of access to it on other platforms.
            job.arg("-mtls-dialect=gnu2");
        }
        job.args([
            "-Wall",
            "-Wno-unknown-pragmas",
            "-fno-strict-aliasing",
            "-ffp-contract=off",
            "-DCAPFUL_STAND_IN",
            "-o",
        ])
        .arg(&library);
        job.args(&parts).args(["-x", "c++"]).args(&sources);
        let inputs = [parts, files("stand_in", "h")?, headers, sources.clone()].concat();
        if let Some(job) = Job::of(job, library.clone(), &inputs)? {
            jobs.insert(0, job);
        }
        stand_in = format!(
            "/// A stand-in for the driver's library that runs the same kernels on the CPU.\n\
             pub const STAND_IN: &str = {:?};\n",
            library.display().to_string()
        );
    }
    if env::var(LINTER).is_ok_and(|wrapper| wrapper.contains("clippy")) {
        for source in &sources {
            let kernel = out.join(stem(source)).with_extension("fatbin");
            std::fs::write(kernel, []).map_err(|e| e.to_string())?;
        }
    } else {
        run_all(jobs)?;
    }

    let mut code =
        String::from("/// Each module's name and its fat binary.\npub static MODULES: &[(&str, &[u8])] = &[\n");
    for source in &sources {
        let name = stem(source);
        writeln!(code, "    ({name:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))),")
            .map_err(|e| e.to_string())?;
    }
    write!(code, "];\n/// What the modules were compiled for.\npub const TARGETS: &str = {targets:?};\n{stand_in}")
        .map_err(|e| e.to_string())?;
    std::fs::write(out.join("modules.rs"), code).map_err(|e| e.to_string())
}

fn stem(source: &Path) -> String {
    source.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The files with this extension in a folder and its subfolders.
fn files(folder: impl AsRef<Path>, extension: &str) -> Result<Vec<PathBuf>, String> {
    let folder = folder.as_ref();
    let entries = std::fs::read_dir(folder).map_err(|e| format!("cannot read kernels/{}: {e}", folder.display()))?;
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            found.extend(files(path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A command that makes a file.
struct Job {
    command: Command,
    /// A file next to the output with a hash of the inputs.
    stamp: PathBuf,
    hash: String,
}

impl Job {
    /// `None` where `made` is up to date.
    fn of(command: Command, made: PathBuf, inputs: &[PathBuf]) -> Result<Option<Job>, String> {
        let mut hasher = DefaultHasher::new();
        format!("{command:?}").hash(&mut hasher);
        env::var_os(NVCC_FLAGS).hash(&mut hasher);
        let compiler = std::fs::metadata(command.get_program()).and_then(|m| m.modified());
        compiler.ok().hash(&mut hasher);
        for path in inputs {
            let text = std::fs::read(path).map_err(|e| format!("cannot read kernels/{}: {e}", path.display()))?;
            text.hash(&mut hasher);
        }
        let (stamp, hash) = (made.with_extension("made"), hasher.finish().to_string());
        let there = made.metadata().is_ok_and(|m| m.len() > 0);
        let same = there && std::fs::read_to_string(&stamp).is_ok_and(|before| before == hash);
        Ok(if same { None } else { Some(Job { command, stamp, hash }) })
    }

    fn run(&mut self) -> Result<(), String> {
        let command = &mut self.command;
        // Invalidated first, so that an interruption cannot leave a file that looks complete.
        std::fs::write(&self.stamp, "").map_err(|e| e.to_string())?;
        let output = command.output().map_err(|e| format!("cannot run {:?}: {e}", command.get_program()))?;
        if !output.status.success() {
            return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        std::fs::write(&self.stamp, &self.hash).map_err(|e| e.to_string())
    }
}

fn find_nvcc() -> Result<PathBuf, String> {
    if let Some(nvcc) = env::var_os("NVCC") {
        return Ok(nvcc.into());
    }
    let mut folders: Vec<PathBuf> =
        ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(|name| Some(Path::new(&env::var_os(name)?).join("bin"))).collect();
    folders.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cuda-toolchain/nvidia/cu13/bin"));
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    folders.extend(["/usr/local/cuda/bin".into(), "/opt/cuda/bin".into()]);
    let found = folders.into_iter().map(|folder| folder.join("nvcc")).find(|path| path.is_file());
    found.ok_or_else(|| format!("the feature `cuda` needs nvcc and none was found; in the repository's root: {PIP}"))
}

/// Runs the commands, as many in parallel as cargo allows.
fn run_all(jobs: Vec<Job>) -> Result<(), String> {
    let threads = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (queue, failed) = (Mutex::new(jobs.into_iter()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mut job) = queue.lock().ok().and_then(|mut q| q.next()) {
                    if let (Err(message), Ok(mut failed)) = (job.run(), failed.lock()) {
                        failed.get_or_insert(message);
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(Some(message)) => Err(message),
        _ => Ok(()),
    }
}
