//! Passes the sizes of memory to the linker's script.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rustc-link-arg-bins=-T{here}/link.x");
    // Programs that learn store gradients and moments next to the weights, and steps in both directions need more code.
    for (name, stack) in [("learn", "38K"), ("spike", "44K"), ("adapt", "48K")] {
        for size in ["flash_size=272K", "ram_size=288K", &format!("stack_size={stack}")] {
            println!("cargo::rustc-link-arg-bin={name}=--defsym={size}");
        }
    }
    // With two ways to split text and a NeuroGen's operations, the code is larger than 102 KiB.
    println!("cargo::rustc-link-arg-bin=speak_spiking=--defsym=flash_size=104K");
    // Five operations more than a Llama's decoding.
    println!("cargo::rustc-link-arg-bin=quick=--defsym=flash_size=116K");
    println!("cargo::rerun-if-changed=link.x");
}
