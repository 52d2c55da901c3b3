//! Ranks that find each other over TCP: NCCL needs that before it can start; afterwards a run sends a few control
//! messages.
//!
//! Rank 0 listens; every other rank connects to rank 0 and stays connected. Gradients and weights never pass through
//! these connections.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::watch::Watch;
use super::{PeerError, Peers, Rank};

/// The first bytes of a rank's first message.
const MAGIC: &[u8; 16] = b"capful ranks 1\r\n";
/// Bytes for a launcher's job name; longer names are cut.
const JOB: usize = 64;
/// Bytes of the first message: magic, rank, count, job.
const HELLO: usize = MAGIC.len() + 8 + JOB;
/// How long ranks wait for each other at the start.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a connected rank may take to identify itself.
const GREETING: Duration = Duration::from_secs(5);
/// The offset from the launcher's port, which is in use, to the port of this program.
const BESIDE: u16 = 17;

/// The address of rank 0, and the name of this job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    host: String,
    port: u16,
    job: [u8; JOB],
}

impl Meeting {
    /// Reads the meeting from the environment.
    ///
    /// # Errors
    /// Variables that are missing, or are no port.
    pub fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Meeting, PeerError> {
        let Some(host) = variable("MASTER_ADDR") else {
            return Err(PeerError(
                "ranks on GPUs find rank 0 by MASTER_ADDR, which is not set; start them with torchrun, or set it to the \
                 machine of rank 0"
                    .to_owned(),
            ));
        };
        let port = |name: &str, beside: u16| {
            let text = variable(name)?;
            let port =
                text.trim().parse::<u16>().ok().and_then(|port| port.checked_add(beside)).filter(|port| *port > 0);
            Some(port.ok_or_else(|| {
                PeerError(format!("{name} is '{text}', which gives no port; set CAPFUL_PORT to a free one"))
            }))
        };
        let port = port("CAPFUL_PORT", 0).or_else(|| port("MASTER_PORT", BESIDE));
        let port = port.unwrap_or_else(|| {
            Err(PeerError(
                "neither CAPFUL_PORT nor MASTER_PORT is set; set one of them, the same on all ranks".to_owned(),
            ))
        })?;
        let names = ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
        let mut job = [0; JOB];
        let name = names.into_iter().find_map(variable).unwrap_or_default();
        let length = name.len().min(JOB);
        job[..length].copy_from_slice(&name.as_bytes()[..length]);
        Ok(Meeting { host, port, job })
    }

    fn hello(&self, rank: Rank) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..16].copy_from_slice(MAGIC);
        hello[16..20].copy_from_slice(&rank.rank.to_le_bytes());
        hello[20..24].copy_from_slice(&rank.count.to_le_bytes());
        hello[24..].copy_from_slice(&self.job);
        hello
    }

    /// The rank that sent a first message, if the message belongs to this job.
    fn guest(&self, rank: Rank, hello: &[u8; HELLO]) -> Option<u32> {
        let guest = hello[16..20].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        let expected = self.hello(Rank { rank: guest, ..rank });
        (*hello == expected && (1..rank.count).contains(&guest)).then_some(guest)
    }
}

/// Ranks connected through rank 0.
pub struct TcpPeers {
    rank: Rank,
    /// On rank 0: one connection for every rank, with `None` for itself. On another rank: the connection to rank 0.
    to: Vec<Option<TcpStream>>,
    watch: Watch,
    room: Vec<u8>,
}

impl TcpPeers {
    /// Connects to the other ranks.
    ///
    /// # Errors
    /// A port in use, an address that does not exist, a rank that does not come.
    pub fn meet(rank: Rank, meeting: &Meeting, watch: Watch) -> Result<TcpPeers, PeerError> {
        TcpPeers::meet_within(rank, meeting, watch, PATIENCE)
    }

    fn meet_within(rank: Rank, meeting: &Meeting, watch: Watch, patience: Duration) -> Result<TcpPeers, PeerError> {
        let deadline = Instant::now() + patience;
        let to = if rank.rank == 0 { receive(rank, meeting, deadline) } else { connect(rank, meeting, deadline) }?;
        Ok(TcpPeers { rank, to, watch, room: Vec::new() })
    }

    /// The connection to rank `other`.
    fn stream(&self, other: u32) -> Result<&TcpStream, PeerError> {
        let at = if self.rank.rank == 0 { other as usize } else { 0 };
        let stream = self.to.get(at).filter(|_| self.rank.rank == 0 || other == 0).and_then(Option::as_ref);
        stream.ok_or_else(|| PeerError(format!("rank {} reaches rank {other} only through rank 0", self.rank.rank)))
    }

    fn send(&self, to: u32, bytes: &[u8]) -> Result<(), PeerError> {
        let mut stream = self.stream(to)?;
        stream.write_all(bytes).map_err(|e| gone(to, &e))
    }

    fn receive(&self, from: u32, bytes: &mut [u8]) -> Result<(), PeerError> {
        let mut stream = self.stream(from)?;
        self.watch.wait_for(from, || stream.read_exact(bytes)).map_err(|e| gone(from, &e))
    }
}

fn gone(rank: u32, error: &io::Error) -> PeerError {
    PeerError(format!("rank {rank} is gone ({error})"))
}

/// Rank 0: waits for every other rank. Any other client's connection is closed.
fn receive(rank: Rank, meeting: &Meeting, deadline: Instant) -> Result<Vec<Option<TcpStream>>, PeerError> {
    let port = meeting.port;
    let listener = TcpListener::bind(("0.0.0.0", port)).map_err(|e| {
        PeerError(format!("rank 0 cannot listen at port {port} ({e}); set CAPFUL_PORT to a free one on all ranks"))
    })?;
    let failed = |e: io::Error| PeerError(format!("rank 0 cannot listen at port {port} ({e})"));
    listener.set_nonblocking(true).map_err(failed)?;
    let mut to: Vec<Option<TcpStream>> = (0..rank.count).map(|_| None).collect();
    while let Some(missing) = (1..rank.count).find(|rank| to[*rank as usize].is_none()) {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some((guest, stream)) =
                    greet(rank, meeting, stream).filter(|(guest, _)| to[*guest as usize].is_none())
                {
                    to[guest as usize] = Some(stream);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(PeerError(format!(
                    "rank {missing} of {} did not come to port {port} of rank 0 in time; start all ranks together",
                    rank.count
                )));
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(to)
}

/// The rank and connection of a client, if it is a rank of this job.
fn greet(rank: Rank, meeting: &Meeting, mut stream: TcpStream) -> Option<(u32, TcpStream)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(GREETING)).ok()?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).ok()?;
    let guest = meeting.guest(rank, &hello)?;
    stream.write_all(MAGIC).ok()?;
    stream.set_read_timeout(None).ok()?;
    stream.set_nodelay(true).ok()?;
    Some((guest, stream))
}

/// A rank other than 0: connects to rank 0, which may not listen yet.
fn connect(rank: Rank, meeting: &Meeting, deadline: Instant) -> Result<Vec<Option<TcpStream>>, PeerError> {
    let Meeting { host, port, .. } = meeting;
    let mut why = "it does not answer".to_owned();
    while Instant::now() < deadline {
        match attempt(rank, meeting, deadline) {
            Ok(stream) => return Ok(vec![Some(stream)]),
            Err(e) => why = e.to_string(),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(PeerError(format!(
        "rank {} does not reach rank 0 at {host}, port {port} ({why}); check MASTER_ADDR, or set CAPFUL_PORT on all ranks",
        rank.rank
    )))
}

fn attempt(rank: Rank, meeting: &Meeting, deadline: Instant) -> io::Result<TcpStream> {
    let address = (meeting.host.as_str(), meeting.port).to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the address has no number"))?;
    let mut stream = TcpStream::connect_timeout(&address, GREETING)?;
    stream.write_all(&meeting.hello(rank))?;
    // Rank 0 greets one client at a time, so its answer may take a while.
    stream.set_read_timeout(Some(deadline.saturating_duration_since(Instant::now()).max(GREETING)))?;
    let mut answer = [0; MAGIC.len()];
    stream.read_exact(&mut answer)?;
    if answer != *MAGIC {
        return Err(io::Error::other("another program listens there"));
    }
    stream.set_read_timeout(None)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Peers for TcpPeers {
    fn rank(&self) -> u32 {
        self.rank.rank
    }

    fn count(&self) -> u32 {
        self.rank.count
    }

    fn send_receive(&mut self, to: u32, send: &[u8], from: u32, receive: &mut [u8]) -> Result<(), PeerError> {
        if !send.is_empty() {
            self.send(to, send)?;
        }
        if receive.is_empty() { Ok(()) } else { self.receive(from, receive) }
    }

    /// Gathers through rank 0, which sends the whole to every rank.
    fn all_gather(&mut self, whole: &mut [u8], of: &dyn Fn(u32) -> Range<usize>) -> Result<(), PeerError> {
        let count = self.rank.count;
        if self.rank.rank > 0 {
            self.send(0, &whole[of(self.rank.rank)])?;
            return self.receive(0, &mut whole[of(0).start..of(count - 1).end]);
        }
        (1..count).try_for_each(|rank| self.receive(rank, &mut whole[of(rank)]))?;
        (1..count).try_for_each(|rank| self.send(rank, &whole[of(0).start..of(count - 1).end]))
    }

    fn watch(&self) -> Option<Watch> {
        Some(self.watch.clone())
    }

    fn room(&mut self) -> &mut Vec<u8> {
        &mut self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    use crate::agreement::{Disagreement, Report, agree, share_bytes};
    use crate::peers::all_gather;

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn meeting(port: u16, job: &str) -> Meeting {
        let variable = |name: &str| match name {
            "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
            "CAPFUL_PORT" => Some(port.to_string()),
            "TORCHELASTIC_RUN_ID" => Some(job.to_owned()),
            _ => None,
        };
        Meeting::of(&variable).unwrap()
    }

    fn watch() -> Watch {
        Watch::new(0, Arc::default())
    }

    fn run<T: Send>(count: u32, work: impl Fn(TcpPeers) -> T + Sync) -> Vec<T> {
        let meeting = meeting(free_port(), "one");
        thread::scope(|scope| {
            let (meeting, work) = (&meeting, &work);
            let rank = |rank| Rank { rank, count, local: rank };
            let threads: Vec<_> = (0..count)
                .map(|r| scope.spawn(move || work(TcpPeers::meet(rank(r), meeting, watch()).unwrap())))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_meet_and_agree_through_rank_0() {
        for count in [2, 3, 5] {
            let ends = [0, 3, 3, 10, 11, 16];
            let of = |rank: u32| ends[rank as usize]..ends[rank as usize + 1];
            let found = run(count, |mut peers| {
                let rank = Peers::rank(&peers);
                let mut whole = vec![0xee; ends[count as usize]];
                whole[of(rank)].fill(rank as u8 + 1);
                all_gather(&mut peers, &mut whole, of).unwrap();
                let failure = (rank == 1).then_some((2, "no room"));
                let found = agree(&mut peers, &Report { failure, digests: &[] }).unwrap();
                let mut id = [rank as u8 + 7; 128];
                share_bytes(&mut peers, &mut id).unwrap();
                (whole, found, id)
            });
            let expected: Vec<u8> = (0..count).flat_map(|rank| vec![rank as u8 + 1; of(rank).len()]).collect();
            let failed = Disagreement::Failed { rank: 1, status: 2, what: "no room".to_owned() };
            assert!(found.iter().all(|other| *other == (expected.clone(), Some(failed.clone()), [7; 128])), "{count}");
        }
    }

    #[test]
    fn strangers_are_turned_away_and_waits_end() {
        let port = free_port();
        let ours = meeting(port, "one");
        let rank = |rank| Rank { rank, count: 2, local: rank };
        thread::scope(|scope| {
            let first = scope.spawn(|| TcpPeers::meet(rank(0), &ours, watch()));
            thread::sleep(Duration::from_millis(50));
            // A client with another protocol, and a rank of another job.
            TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let other = meeting(port, "another");
            let turned = TcpPeers::meet_within(rank(1), &other, watch(), Duration::from_millis(200)).err().unwrap();
            assert!(turned.to_string().contains("rank 1 does not reach rank 0 at 127.0.0.1"), "{turned}");
            let second = TcpPeers::meet(rank(1), &ours, watch()).unwrap();
            first.join().unwrap().unwrap();
            drop(second);
        });
        // No rank comes; and the port is in use by another process.
        let late = TcpPeers::meet_within(rank(0), &ours, watch(), Duration::from_millis(50)).err().unwrap();
        assert!(late.to_string().contains("rank 1 of 2 did not come"), "{late}");
        let _taken = TcpListener::bind(("0.0.0.0", port)).unwrap();
        let taken = TcpPeers::meet_within(rank(0), &ours, watch(), Duration::from_millis(50)).err().unwrap();
        assert!(
            taken.to_string().contains(&format!("port {port}")) && taken.to_string().contains("CAPFUL_PORT"),
            "{taken}"
        );
    }

    #[test]
    fn the_place_to_meet_is_the_environment_s() {
        let of = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            Meeting::of(&found).map(|meeting| (meeting.host, meeting.port)).map_err(|e| e.to_string())
        };
        let torchrun = [("MASTER_ADDR", "node"), ("MASTER_PORT", "29500")];
        assert_eq!(of(&torchrun), Ok(("node".to_owned(), 29_517)));
        assert_eq!(of(&[torchrun[0], ("CAPFUL_PORT", "7000")]), Ok(("node".to_owned(), 7_000)));
        for (variables, says) in [
            (&torchrun[1..], "MASTER_ADDR, which is not set"),
            (&torchrun[..1], "neither CAPFUL_PORT nor MASTER_PORT"),
            (&[torchrun[0], ("CAPFUL_PORT", "x")], "CAPFUL_PORT is 'x'"),
            (&[torchrun[0], ("MASTER_PORT", "65530")], "MASTER_PORT is '65530'"),
        ] {
            let message = of(variables).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{message}");
        }
    }
}
