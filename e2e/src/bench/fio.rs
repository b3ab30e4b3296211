//! fio in a guest: the disk that it comes on, its loads on another disk, and what it says about them.

use crate::Console;
use crate::command::{repository, run_within};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Compiling it on a busy machine, after another build.
const BUILT: Duration = Duration::from_secs(900);
/// A load takes a second, and its processes start and end.
const LOAD: Duration = Duration::from_secs(120);
const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// What all loads have in common: a second of requests for the first part of the disk, without the guest's page cache. The kernel's
/// clock is used since fio would measure that of the processor anew at each start.
const COMMON: &str = "--name=load --filename=/dev/vdb --size=64m --direct=1 --ioengine=psync --thread --group_reporting \
                      --clocksource=clock_gettime --time_based --runtime=1s --output-format=json";

/// The disk with fio, which is built if it is not there.
pub(super) fn disk() -> Result<PathBuf> {
    let script = repository().join("e2e/fio.sh");
    let output = run_within(&mut Command::new(script), None, BUILT)?;
    ensure!(output.code == 0, "fio cannot be built: {}", output.text().trim());
    Ok(PathBuf::from(output.stdout.trim()))
}

/// Takes fio from that disk of the guest, and writes what the loads will read, so that all of it is allocated.
pub(super) fn prepare(console: &mut Console, disk: &str) -> Result<()> {
    console.ok(&format!("cat {disk} >/tmp/fio && chmod +x /tmp/fio"), LOAD)?;
    console.ok("dd if=/dev/zero of=/dev/vdb bs=1M count=64 oflag=direct", LOAD).map(drop)
}

/// A load, and the figure that is taken from fio's report.
pub(super) struct Load {
    /// Name of the figure.
    pub(super) name: &'static str,
    /// Its unit.
    pub(super) unit: &'static str,
    /// Whether more is better; otherwise it is a time.
    pub(super) is_rate: bool,
    arguments: &'static str,
    figure: fn(&Job) -> f64,
}

/// All loads. Requests are made one after the other, except where sixteen threads make them.
pub(super) static LOADS: [Load; 4] = [
    Load {
        name: "disk_write",
        unit: "MiB/s",
        is_rate: true,
        arguments: "--rw=write --bs=1m",
        figure: |job| job.write.bw_bytes / MEBIBYTE,
    },
    Load {
        name: "disk_read",
        unit: "MiB/s",
        is_rate: true,
        arguments: "--rw=read --bs=1m",
        figure: |job| job.read.bw_bytes / MEBIBYTE,
    },
    Load {
        name: "disk_random_read",
        unit: "reads/s",
        is_rate: true,
        arguments: "--rw=randread --bs=4k --numjobs=16",
        figure: |job| job.read.iops,
    },
    Load {
        name: "disk_latency",
        unit: "us",
        is_rate: false,
        arguments: "--rw=randwrite --bs=4k --fdatasync=1",
        figure: |job| (job.write.clat_ns.mean + job.sync.lat_ns.mean) / 1000.0,
    },
];

impl Load {
    /// Puts it on the guest's disk, once.
    pub(super) fn run(&self, console: &mut Console) -> Result<f64> {
        let said = console.ok(&format!("/tmp/fio {COMMON} {}", self.arguments), LOAD)?;
        self.read(&said).with_context(|| format!("{}: fio said {said}", self.name))
    }

    fn read(&self, said: &str) -> Result<f64> {
        // Notes come before the report.
        let json = said.find('{').and_then(|at| said.get(at..)).context("no report")?;
        let report: Report = serde_json::from_str(json).context("read the report")?;
        let [job] = report.jobs.as_slice() else { bail!("the report is of {} loads", report.jobs.len()) };
        let figure = (self.figure)(job);
        ensure!(figure > 0.0, "nothing was measured");
        Ok(figure)
    }
}

/// fio's report, in JSON.
#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Requests,
    write: Requests,
    sync: Flushes,
}

/// Reads, or writes.
#[derive(Deserialize)]
struct Requests {
    /// Bytes a second.
    bw_bytes: f64,
    /// Requests a second.
    iops: f64,
    clat_ns: Times,
}

/// What follows each write.
#[derive(Deserialize)]
struct Flushes {
    lat_ns: Times,
}

#[derive(Deserialize)]
struct Times {
    mean: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two reports of fio 3.33 in one, of the load of `disk_latency` and that of `disk_random_read`, without most of their fields.
    const SAID: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected, queue depth will be capped at 1
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "load",
      "groupid" : 0,
      "error" : 0,
      "job options" : {
        "size" : "64m"
      },
      "read" : {
        "io_bytes" : 42467328,
        "bw_bytes" : 42005270,
        "bw" : 41020,
        "iops" : 10255.192878,
        "clat_ns" : {
          "min" : 98713,
          "mean" : 1520370.281250,
          "N" : 10368
        }
      },
      "write" : {
        "io_bytes" : 7716864,
        "bw_bytes" : 7709154,
        "bw" : 7528,
        "iops" : 1882.117882,
        "clat_ns" : {
          "min" : 103514,
          "max" : 16907008,
          "mean" : 318517.624204,
          "stddev" : 743256.172693,
          "N" : 1884,
          "percentile" : {
            "50.000000" : 168960
          }
        }
      },
      "sync" : {
        "total_ios" : 0,
        "lat_ns" : {
          "min" : 87459,
          "mean" : 189640.920382,
          "N" : 1884
        }
      },
      "latency_ms" : {
        ">=2000" : 0.000000
      }
    }
  ]
}"#;

    fn read(name: &str, said: &str) -> Result<f64> {
        LOADS.iter().find(|load| load.name == name).unwrap().read(said)
    }

    #[test]
    fn figures_are_taken_from_a_report() {
        for (name, figure) in [
            ("disk_write", 7_709_154.0 / 1_048_576.0),
            ("disk_read", 42_005_270.0 / 1_048_576.0),
            ("disk_random_read", 10_255.192_878),
            ("disk_latency", (318_517.624_204 + 189_640.920_382) / 1000.0),
        ] {
            assert!((read(name, SAID).unwrap() - figure).abs() < 1e-6, "{name}");
        }
    }

    #[test]
    fn a_report_of_nothing_is_no_figure() {
        let error = |said: &str| format!("{:#}", read("disk_read", said).unwrap_err());
        assert_eq!(error(&SAID.replace("42005270", "0")), "nothing was measured");
        assert_eq!(error(r#"{ "jobs": [] }"#), "the report is of 0 loads");
        assert_eq!(error("fio: unrecognized option"), "no report");
        // The end of the report is missing.
        let cut = SAID.strip_suffix('}').unwrap();
        assert!(error(cut).starts_with("read the report: "), "{}", error(cut));
    }
}
