//! Reads the rank of this process from the environment that its launcher set.

use super::PeerError;

/// One of the processes that a launcher started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Its number among all processes.
    pub rank: u32,
    /// How many processes there are.
    pub count: u32,
    /// Its number on this machine.
    pub local: u32,
}

/// The variables of a launcher: rank, count, and number on this machine.
struct Launcher {
    name: &'static str,
    variables: [&'static str; 3],
}

/// A launcher may start one that precedes it in this list.
const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", variables: ["RANK", "WORLD_SIZE", "LOCAL_RANK"] },
    Launcher {
        name: "mpirun",
        variables: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    },
    Launcher { name: "mpirun", variables: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"] },
    Launcher { name: "srun", variables: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"] },
];

/// The lowest step number that Slurm reserves for itself: an allocation's shell, a batch script (slurm.h).
const SLURMS_OWN_STEPS: u32 = 0xffff_fff0;

/// What a launcher's variables say of a process.
struct Said<'a> {
    launcher: &'a Launcher,
    rank: u32,
    count: u32,
    local: Option<u32>,
}

impl Launcher {
    /// What this launcher's variables say; `None` if they are not set.
    fn said(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Said<'_>>, PeerError> {
        let Launcher { name, variables } = self;
        let read = |name: &'static str| -> Result<Option<u32>, PeerError> {
            let Some(text) = variable(name) else { return Ok(None) };
            let number = text.trim().parse();
            number.map(Some).map_err(|_| PeerError(format!("{name} is '{text}'; {} sets it to a number", self.name)))
        };
        let [rank, count, local] = [read(variables[0])?, read(variables[1])?, read(variables[2])?];
        let (rank, count) = match (rank, count) {
            (Some(rank), Some(count)) => (rank, count),
            (None, None) => return Ok(None),
            (given, _) => {
                let [there, missing] = if given.is_some() { [0, 1] } else { [1, 0] };
                return Err(PeerError(format!(
                    "{} is set and {} is not; start ranks with {name}, or unset it",
                    variables[there], variables[missing]
                )));
            }
        };
        for (number, variable) in [(Some(rank), variables[0]), (local, variables[2])] {
            if let Some(number) = number.filter(|number| *number >= count) {
                return Err(PeerError(format!(
                    "{variable} is {number} and {} is {count}; ranks are numbered from 0 to one less than their count",
                    variables[1]
                )));
            }
        }
        Ok(Some(Said { launcher: self, rank, count, local }))
    }
}

/// The rank that the environment describes; `None` if no launcher started this process. `variable` returns the value of
/// a variable that is set.
///
/// # Errors
/// Variables that are missing, are no numbers or contradict each other.
pub fn rank(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Rank>, PeerError> {
    // Slurm also sets its variables for a shell or a batch script, which are no ranks; a step of srun is one.
    let step = variable("SLURM_STEP_ID").and_then(|step| step.trim().parse::<u32>().ok());
    let in_step = step.is_some_and(|step| step < SLURMS_OWN_STEPS);
    // A job script may also set RANK and WORLD_SIZE, to another launcher's numbers.
    let torchrun = variable("TORCHELASTIC_RUN_ID").is_some();
    let mut found: Option<Said<'_>> = None;
    for launcher in LAUNCHERS.iter().filter(|launcher| launcher.name != "srun" || in_step) {
        // A launcher that started a single process says nothing about ranks.
        let Some(said) = launcher.said(variable)?.filter(|said| said.count > 1) else { continue };
        let Some(inner) = &mut found else {
            found = Some(said);
            continue;
        };
        let name = inner.launcher.name;
        if (inner.rank, inner.count) == (said.rank, said.count) {
            inner.local = inner.local.or(said.local);
        } else if name == "torchrun" && torchrun && said.count <= inner.count {
            // The other launcher started torchruns, one on each machine, which may be numbered in another order.
        } else if name == "mpirun" && launcher.name == "srun" && said.count < inner.count {
            // srun's tasks are the daemons that mpirun starts on each machine, in some MPIs on each but its own.
        } else {
            return Err(PeerError(format!(
                "{} says rank {} of {} and {} says rank {} of {}; start the run with one of them",
                inner.launcher.variables[0], inner.rank, inner.count, launcher.variables[0], said.rank, said.count
            )));
        }
    }
    // Without a local number all ranks are taken to be on one machine.
    Ok(found.map(|Said { rank, count, local, .. }| Rank { rank, count, local: local.unwrap_or(rank) }))
}

/// The number of the GPU that a rank trains on, among those that its process sees: the rank's number on the machine, or
/// 0 if a scheduler shows each process a single GPU (`srun --gpus-per-task 1`). torchrun shows the same GPUs to all its
/// ranks.
pub fn gpu(rank: Rank, variable: &dyn Fn(&str) -> Option<String>) -> u32 {
    let one = variable("CUDA_VISIBLE_DEVICES").is_some_and(|seen| !seen.trim().is_empty() && !seen.contains(','));
    if one && variable("TORCHELASTIC_RUN_ID").is_none() { 0 } else { rank.local }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Rank>, String> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        rank(&variable).map_err(|e| e.to_string())
    }

    fn some(rank: u32, count: u32, local: u32) -> Result<Option<Rank>, String> {
        Ok(Some(Rank { rank, count, local }))
    }

    #[test]
    fn every_launcher_is_understood() {
        assert_eq!(of(&[]), Ok(None));
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(of(&torchrun), some(5, 8, 1));
        let openmpi =
            [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        assert_eq!(of(&openmpi), some(1, 2, 1));
        assert_eq!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "3")]), some(2, 3, 2));
        let srun = [("SLURM_PROCID", "9"), ("SLURM_NTASKS", "16"), ("SLURM_LOCALID", "1"), ("SLURM_STEP_ID", "0")];
        assert_eq!(of(&srun), some(9, 16, 1));
        // A batch script of 16 tasks is not one of 16 ranks, and the only process of a launcher is no rank.
        assert_eq!(of(&srun[..3]), Ok(None));
        assert_eq!(of(&[("SLURM_STEP_ID", "batch"), srun[0], srun[1]]), Ok(None));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        // mpirun within a task of srun, and srun that starts MPI's ranks itself.
        let alone = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")];
        assert_eq!(of(&[&openmpi[..], &alone].concat()), some(1, 2, 1));
        // PMI's variables have no local number; Slurm's have one.
        assert_eq!(of(&[&srun[..], &[("PMI_RANK", "9"), ("PMI_SIZE", "16")]].concat()), some(9, 16, 1));
        // A job script that copies Slurm's numbers into RANK and WORLD_SIZE.
        assert_eq!(of(&[&srun[..], &[("RANK", "9"), ("WORLD_SIZE", "16")]].concat()), some(9, 16, 1));
    }

    #[test]
    fn the_shell_of_an_allocation_is_no_rank() {
        let salloc = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16"), ("SLURM_LOCALID", "0")];
        let in_step = |id| of(&[&salloc[..], &[("SLURM_STEP_ID", id)]].concat());
        // Interactive, batch, extern and pending steps, and an older version's number of a batch script.
        for id in ["4294967290", "4294967291", "4294967292", "4294967293", "4294967294", "4294967295", "", "batch"] {
            assert_eq!(in_step(id), Ok(None), "{id}");
        }
        assert_eq!(in_step("3"), some(0, 16, 0));
        assert_eq!(in_step("4294967279"), some(0, 16, 0));
    }

    #[test]
    fn the_tasks_of_a_launcher_may_be_launchers() {
        // `srun --ntasks-per-node 1 torchrun --nproc-per-node 8` on two machines: Slurm counts torchruns.
        let tasks = |rank, count| {
            [("SLURM_PROCID", rank), ("SLURM_NTASKS", count), ("SLURM_LOCALID", "0"), ("SLURM_STEP_ID", "0")]
        };
        let torchrun = |rank, count, local| {
            [("RANK", rank), ("WORLD_SIZE", count), ("LOCAL_RANK", local), ("TORCHELASTIC_RUN_ID", "none")]
        };
        assert_eq!(of(&[torchrun("11", "16", "3"), tasks("1", "2")].concat()), some(11, 16, 3));
        // torchrun numbers machines as they arrive, so with one rank on each its numbers may differ from Slurm's.
        assert_eq!(of(&[torchrun("1", "2", "0"), tasks("0", "2")].concat()), some(1, 2, 0));
        let mpi = |rank, count, local| {
            [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", count), ("OMPI_COMM_WORLD_LOCAL_RANK", local)]
        };
        assert_eq!(of(&[&torchrun("11", "16", "3")[..], &mpi("1", "2", "0")].concat()), some(11, 16, 3));
        // mpirun in an allocation of three machines starts a daemon on each of the other two with srun.
        assert_eq!(of(&[&mpi("5", "6", "1")[..], &tasks("1", "2")].concat()), some(5, 6, 1));
        // A launcher starts at least as many ranks as there are of itself.
        for variables in [
            [&mpi("1", "2", "1")[..], &tasks("3", "4")].concat(),
            [&mpi("1", "2", "1")[..], &tasks("0", "2")].concat(),
            [&torchrun("0", "2", "0")[..], &tasks("3", "4")].concat(),
            [&torchrun("0", "4", "0")[..3], &tasks("1", "2")].concat(),
        ] {
            let message = of(&variables).unwrap_err();
            assert!(message.contains("and SLURM_PROCID says rank"), "{message}");
        }
    }

    #[test]
    fn what_is_missing_wrong_or_contradicts_is_said_in_a_line() {
        for (variables, says) in [
            (&[("WORLD_SIZE", "2")][..], "WORLD_SIZE is set and RANK is not; start ranks with torchrun"),
            (&[("RANK", "2")], "RANK is set and WORLD_SIZE is not"),
            (&[("RANK", "two"), ("WORLD_SIZE", "2")], "RANK is 'two'"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2 and WORLD_SIZE is 2"),
            (&[("PMI_SIZE", "-1"), ("PMI_RANK", "0")], "PMI_SIZE is '-1'"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "2")], "LOCAL_RANK is 2 and WORLD_SIZE is 2"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "4"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")],
                "RANK says rank 0 of 4 and PMI_RANK says rank 1 of 2",
            ),
        ] {
            let message = of(variables).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{message}");
        }
    }
    #[test]
    fn a_rank_that_sees_one_gpu_uses_it() {
        let of = |variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            gpu(Rank { rank: 11, count: 16, local: 3 }, &variable)
        };
        assert_eq!(of(&[]), 3);
        for all in ["0,1,2,3", "4,5,6,7", ""] {
            assert_eq!(of(&[("CUDA_VISIBLE_DEVICES", all)]), 3, "{all}");
        }
        for one in ["0", "3", "GPU-5a3f", "MIG-77c1"] {
            assert_eq!(of(&[("CUDA_VISIBLE_DEVICES", one)]), 0, "{one}");
        }
        // More ranks than GPUs: a rank without a GPU of its own fails rather than share one.
        assert_eq!(of(&[("CUDA_VISIBLE_DEVICES", "0"), ("TORCHELASTIC_RUN_ID", "none")]), 3);
    }
}
