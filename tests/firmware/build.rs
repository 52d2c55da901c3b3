//! Names the linker's script.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rustc-link-arg-bins=-T{here}/link.x");
    // Who learns keeps gradients and moments beside the weights, and steps in both directions are more code.
    for (name, stack) in [("learn", "38K"), ("spike", "44K"), ("adapt", "48K")] {
        for size in ["flash_size=272K", "ram_size=288K", &format!("stack_size={stack}")] {
            println!("cargo::rustc-link-arg-bin={name}=--defsym={size}");
        }
    }
    // Of two ways to cut text and a NeuroGen's operations the code is more than 102 KiB.
    println!("cargo::rustc-link-arg-bin=speak_spiking=--defsym=flash_size=104K");
    // Five operations more than a Llama decodes with.
    println!("cargo::rustc-link-arg-bin=quick=--defsym=flash_size=116K");
    println!("cargo::rerun-if-changed=link.x");
}
