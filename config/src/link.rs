//! What connects ranks.

use serde::Serialize;

/// What connects ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// NVLink 4: 450 GB/s from each GPU.
    Nvlink,
    /// PCI Express 4.0 × 16: 31.5 GB/s.
    Pcie,
    /// Ethernet of 100 Gbit/s, of its own for each rank: 12.5 GB/s.
    #[value(name = "100gbe")]
    #[serde(rename = "100gbe")]
    Ethernet,
}

impl Link {
    /// All of them.
    pub const ALL: [Link; 3] = [Link::Nvlink, Link::Pcie, Link::Ethernet];

    /// Bytes a second that a rank sends while it receives as many, at best.
    pub const fn bytes_per_s(self) -> f64 {
        match self {
            Link::Nvlink => 450e9,
            Link::Pcie => 31.5e9,
            Link::Ethernet => 12.5e9,
        }
    }

    /// Seconds that a message takes besides, as is commonly measured: an assumption, not a limit.
    pub const fn seconds_per_message(self) -> f64 {
        match self {
            Link::Nvlink => 2e-6,
            Link::Pcie => 5e-6,
            Link::Ethernet => 10e-6,
        }
    }

    /// Seconds of so many bytes in so many messages, one after the other.
    pub fn seconds(self, bytes: u64, messages: u64) -> f64 {
        bytes as f64 / self.bytes_per_s() + messages as f64 * self.seconds_per_message()
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Link::Nvlink => "NVLink",
            Link::Pcie => "PCIe 4.0",
            Link::Ethernet => "100 Gbit/s Ethernet",
        })
    }
}
