//! An upload as the flags describe it, after checking that they fit together.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use barevirt_api::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::arguments::ImageUpload;

/// Which kind of object the image goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    DataVolume,
    Claim,
}

/// What is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Image,
    Archive,
}

impl Content {
    /// CDI's name for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Image => "kubevirt",
            Self::Archive => "archive",
        }
    }
}

/// An upload, from flags that fit together. A value that no flag gives is `None`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Upload {
    pub(super) target: Target,
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) content: Content,
    /// `algorithm:digest` of the file.
    pub(super) checksum: Option<String>,
    /// Whether to create the objects.
    pub(super) create: bool,
    pub(super) size: Option<Quantity>,
    pub(super) storage_class: Option<String>,
    pub(super) access_mode: Option<String>,
    /// In the spelling of claims.
    pub(super) volume_mode: Option<&'static str>,
    pub(super) force_bind: bool,
    pub(super) data_source: bool,
    /// Labels that say which instance type and preference a machine with this image has.
    pub(super) labels: Vec<(&'static str, String)>,
    /// Empty if the cluster's settings have it.
    pub(super) proxy: String,
    pub(super) insecure: bool,
    pub(super) wait_secs: u32,
    /// At least one.
    pub(super) tries: u32,
}

const BLOCK: &str = "block";
const FILESYSTEM: &str = "filesystem";

/// The text of a flag that was given.
fn given(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

impl ImageUpload {
    /// A line for each deprecated flag in use.
    pub(super) fn deprecated(&self) -> Vec<String> {
        [
            (!self.pvc_name.is_empty(), "pvc-name", "specify the name as the second argument instead."),
            (!self.pvc_size.is_empty(), "pvc-size", "use --size instead."),
            (
                self.block_volume,
                "block-volume",
                "specify volume mode (filesystem/block) with --volume-mode instead.",
            ),
        ]
        .into_iter()
        .filter(|(used, ..)| *used)
        .map(|(_, flag, instead)| format!("Flag --{flag} has been deprecated, {instead}"))
        .collect()
    }

    /// Reads all flags, without requests to the cluster.
    pub(super) fn upload(&self) -> anyhow::Result<Upload> {
        let size = self.size()?;
        let volume_mode = self.volume_mode()?;
        let (path, content) = match (&self.image_path, &self.archive_path) {
            (Some(path), None) => (path, Content::Image),
            (None, Some(path)) => (path, Content::Archive),
            (None, None) => bail!("either image-path or archive-path must be provided"),
            (Some(_), Some(_)) => {
                bail!("cannot handle both image-path and archive-path, provide only one")
            }
        };
        ensure!(
            content == Content::Image || volume_mode != Some("Block"),
            "In archive upload the volume mode should always be filesystem"
        );
        ensure!(
            self.checksum.is_none() || content == Content::Image || !path.is_dir(),
            "--checksum is that of a file, and {} is a directory",
            path.display()
        );
        let (target, name) = self.target()?;
        let labels = self.labels()?;
        ensure!(
            self.access_mode != "ReadOnlyMany",
            "cannot upload to a readonly volume, use either ReadWriteOnce or ReadWriteMany if supported"
        );
        Ok(Upload {
            target,
            name,
            path: path.clone(),
            content,
            checksum: self.checksum.clone(),
            create: !self.no_create,
            size,
            storage_class: given(&self.storage_class),
            access_mode: given(&self.access_mode),
            volume_mode,
            force_bind: self.force_bind,
            data_source: self.datasource,
            labels,
            proxy: self.uploadproxy_url.clone(),
            insecure: self.insecure,
            wait_secs: self.wait_secs,
            tries: self.retry.max(1),
        })
    }

    fn size(&self) -> anyhow::Result<Option<Quantity>> {
        let text = match (self.size.as_str(), self.pvc_size.as_str()) {
            (size, former) if !size.is_empty() && !former.is_empty() && size != former => {
                bail!("--pvc-size and --size can not be specified at the same time")
            }
            ("", former) => former,
            (size, _) => size,
        };
        let size = given(text).map(Quantity);
        if let Some(size) = &size
            && let Err(error) = quantity::bytes(size)
        {
            bail!("validation failed for size={text}: {error}");
        }
        Ok(size)
    }

    fn volume_mode(&self) -> anyhow::Result<Option<&'static str>> {
        match (self.volume_mode.as_str(), self.block_volume) {
            (BLOCK, _) | ("", true) => Ok(Some("Block")),
            (FILESYSTEM, false) => Ok(Some("Filesystem")),
            ("", false) => Ok(None),
            (mode, true) => bail!("incompatible --volume-mode '{mode}' and --block-volume"),
            (mode, false) => {
                bail!("Invalid volume mode '{mode}'. Valid values are 'block' and 'filesystem'.")
            }
        }
    }

    fn target(&self) -> anyhow::Result<(Target, String)> {
        match (self.pvc_name.as_str(), self.target.as_slice()) {
            ("", [kind, name]) => {
                let target = match kind.to_lowercase().as_str() {
                    "dv" => Target::DataVolume,
                    "pvc" => Target::Claim,
                    _ => bail!("invalid resource type {kind}"),
                };
                ensure!(!name.is_empty(), "the name of the {kind} is empty");
                Ok((target, name.clone()))
            }
            ("", _) => bail!("expecting two args"),
            (name, []) => Ok((Target::Claim, name.to_owned())),
            _ => bail!("cannot use --pvc-name and args"),
        }
    }

    fn labels(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        let (instancetype, preference) = (&self.default_instancetype, &self.default_preference);
        for (flag, name, kind) in [
            ("--default-instancetype", instancetype, &self.default_instancetype_kind),
            ("--default-preference", preference, &self.default_preference_kind),
        ] {
            ensure!(!name.is_empty() || kind.is_empty(), "{flag} must be provided with {flag}-kind");
        }
        ensure!(
            !self.no_create || (instancetype.is_empty() && preference.is_empty()),
            "--default-instancetype and --default-preference cannot be used with --no-create"
        );
        let all = [
            ("instancetype.kubevirt.io/default-instancetype", instancetype),
            ("instancetype.kubevirt.io/default-instancetype-kind", &self.default_instancetype_kind),
            ("instancetype.kubevirt.io/default-preference", preference),
            ("instancetype.kubevirt.io/default-preference-kind", &self.default_preference_kind),
        ];
        Ok(all.into_iter().filter_map(|(label, text)| Some((label, given(text)?))).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: ImageUpload,
    }

    fn flags(arguments: &[&str]) -> ImageUpload {
        Wrapped::parse_from([&["image-upload"], arguments].concat()).inner
    }

    /// The upload of flags that fit together.
    pub(in super::super) fn read(arguments: &[&str]) -> Upload {
        flags(arguments).upload().unwrap()
    }

    #[test]
    fn the_kind_and_name_say_what_is_filled() {
        let upload = read(&["dv", "disk", "--size=1Gi", "--image-path=a.img"]);
        assert_eq!((upload.target, upload.name.as_str()), (Target::DataVolume, "disk"));
        assert_eq!((upload.content, upload.create, upload.tries), (Content::Image, true, 5));
        assert_eq!((upload.wait_secs, upload.volume_mode), (300, None));
        assert_eq!(upload.size, Some(Quantity("1Gi".to_owned())));
        let upload = read(&["PVC", "disk", "--no-create", "--archive-path=a.tar", "--retry=0"]);
        assert_eq!((upload.target, upload.content), (Target::Claim, Content::Archive));
        assert_eq!((upload.create, upload.size, upload.tries), (false, None, 1));
    }

    #[test]
    fn deprecated_flags_mean_what_they_did() {
        let old = ["--pvc-name=disk", "--pvc-size=1Gi", "--block-volume", "--image-path=a.img"];
        let new = ["pvc", "disk", "--size=1Gi", "--volume-mode=block", "--image-path=a.img"];
        assert_eq!(read(&old), read(&new));
        assert_eq!(
            flags(&old).deprecated(),
            [
                "Flag --pvc-name has been deprecated, specify the name as the second argument instead.",
                "Flag --pvc-size has been deprecated, use --size instead.",
                "Flag --block-volume has been deprecated, specify volume mode (filesystem/block) with --volume-mode instead.",
            ]
        );
        assert_eq!(flags(&new).deprecated(), Vec::<String>::new());
    }

    #[test]
    fn conflicting_upload_flags_are_refused() {
        let image = "--image-path=a.img";
        for (arguments, words) in [
            (&["dv", "disk"][..], "either image-path or archive-path must be provided"),
            (
                &["dv", "disk", image, "--archive-path=b"],
                "cannot handle both image-path and archive-path, provide only one",
            ),
            (
                &["dv", "disk", "--archive-path=b", "--volume-mode=block"],
                "In archive upload the volume mode should always be filesystem",
            ),
            (&["dv", image], "expecting two args"),
            (&["dv", "disk", "more", image], "expecting two args"),
            (&["vm", "disk", image], "invalid resource type vm"),
            (&["pvc", "", image], "the name of the pvc is empty"),
            (&["dv", "disk", "--pvc-name=disk", image], "cannot use --pvc-name and args"),
            (
                &["dv", "disk", "--size=1Gi", "--pvc-size=2Gi", image],
                "--pvc-size and --size can not be specified at the same time",
            ),
            (
                &["dv", "disk", "--size=big", image],
                "validation failed for size=big: quantity \"big\" is not a number with an optional suffix",
            ),
            (
                &["dv", "disk", "--volume-mode=tape", image],
                "Invalid volume mode 'tape'. Valid values are 'block' and 'filesystem'.",
            ),
            (
                &["dv", "disk", "--volume-mode=filesystem", "--block-volume", image],
                "incompatible --volume-mode 'filesystem' and --block-volume",
            ),
            (
                &["dv", "disk", "--access-mode=ReadOnlyMany", image],
                "cannot upload to a readonly volume, use either ReadWriteOnce or ReadWriteMany if supported",
            ),
            (
                &["dv", "disk", "--archive-path=/", "--checksum=md5:0"],
                "--checksum is that of a file, and / is a directory",
            ),
            (
                &["dv", "disk", "--default-instancetype-kind=x", image],
                "--default-instancetype must be provided with --default-instancetype-kind",
            ),
            (
                &["dv", "disk", "--default-preference-kind=x", image],
                "--default-preference must be provided with --default-preference-kind",
            ),
            (
                &["dv", "disk", "--default-preference=x", "--no-create", image],
                "--default-instancetype and --default-preference cannot be used with --no-create",
            ),
        ] {
            assert_eq!(flags(arguments).upload().unwrap_err().to_string(), words, "{arguments:?}");
        }
    }
}
