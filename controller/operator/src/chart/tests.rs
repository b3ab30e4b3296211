use super::*;
use crate::kubevirt;

fn pinned() -> Images {
    let mut images = Images {
        registry: "r.example:5000/x".into(),
        tag: "v1.20.0".into(),
        pull_policy: "Always".into(),
        ..Images::default()
    };
    for (name, digit) in INSTALLED.iter().chain(&[crate::operator::NAME]).zip("0123456".chars()) {
        let digest = format!("sha256:{}", digit.to_string().repeat(64));
        images.pin(name, &format!("r.example:5000/x/{name}@{digest}")).unwrap();
    }
    images
}

fn file(images: &Images, path: &str) -> String {
    files("1.20.0", images).unwrap().into_iter().find(|(known, _)| *known == path).unwrap().1
}

/// The template with these values, rendered by hand. `tests/helm.rs` lets Helm do it.
fn rendered(text: &str, images: &Images) -> Vec<Value> {
    let secrets = "{{- with .Values.imagePullSecrets }}";
    let mut lines = vec![];
    let mut left_out = false;
    for line in text.lines() {
        let pad = " ".repeat(line.len() - line.trim_start().len());
        left_out |= line.trim_start() == secrets;
        match line.trim_start() {
            "{{- end }}" => left_out = false,
            _ if left_out => {}
            word if word.starts_with("{{- if and .Values.namespace.create") => {}
            word if word.starts_with("{{- include \"barevirt.pinned\"") => {
                let known = INSTALLED.iter().filter(|name| images.pinned.contains_key(**name));
                let mut variables: Vec<(String, String)> =
                    known.map(|name| (crate::variable(name), images.reference(name))).collect();
                if !images.pinned.is_empty() {
                    variables.insert(0, ("KUBEVIRT_VERSION".into(), images.tag.clone()));
                }
                for (name, value) in variables {
                    lines.push(format!("{pad}- name: {name}\n{pad}  value: {value}"));
                }
            }
            _ => lines.push(
                line.replace(
                    "{{ include \"barevirt.image\" (list . \"virt-operator\") }}",
                    &images.reference("virt-operator"),
                )
                .replace("{{ .Values.image.pullPolicy }}", &images.pull_policy),
            ),
        }
    }
    let text = lines.join("\n");
    assert!(!text.contains("{{") && !text.contains("PLACEHOLDER"), "{text}");
    text.split("\n---\n").skip(1).map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn without_keep(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(KEEP.0);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    object
}

#[test]
fn the_charts_objects_are_the_manifests() {
    for images in [Images::default(), pinned()] {
        let mut objects = rendered(&file(&images, "templates/operator.yaml"), &images);
        let definitions = file(&images, "crds/kubevirt.yaml");
        let definition: Value = serde_saphyr::from_str(definitions.split("\n---\n").nth(1).unwrap()).unwrap();
        objects.insert(1, definition);
        let objects: Vec<Value> = objects.into_iter().map(without_keep).collect();
        let expected = manifest(&images);
        assert_eq!(objects.len(), expected.len());
        for (object, expected) in objects.iter().zip(&expected) {
            assert_eq!(object, expected);
        }
    }
}

#[test]
fn helm_keeps_the_objects_that_machines_depend_on() {
    let images = Images::default();
    let kept: Vec<String> = rendered(&file(&images, "templates/operator.yaml"), &images)
        .iter()
        .filter(|object| object["metadata"]["annotations"][KEEP.0] == KEEP.1)
        .map(|object| object["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kept, KEPT);
    assert!(file(&images, "templates/kubevirt.yaml").contains("helm.sh/resource-policy: keep"));
    // Objects in templates/ are deleted with the release.
    assert!(!file(&images, "templates/operator.yaml").contains("kind: CustomResourceDefinition"));
}

#[test]
fn values_say_what_the_images_are() {
    let of = |images: &Images| -> Value { serde_saphyr::from_str(&file(images, "values.yaml")).unwrap() };
    let (plain, pinned) = (of(&Images::default()), of(&pinned()));
    assert_eq!(plain["image"]["digests"], json!({}));
    assert_eq!(plain["kubevirt"]["spec"], kubevirt()["spec"]);
    assert_eq!(pinned["image"]["registry"], "r.example:5000/x");
    assert_eq!(pinned["image"]["tag"], "v1.20.0");
    assert_eq!(pinned["image"]["pullPolicy"], "Always");
    assert_eq!(pinned["image"]["digests"]["virt-operator"], format!("sha256:{}", "6".repeat(64)));
    assert_eq!(pinned["image"]["digests"].as_object().unwrap().len(), 7);
    let chart: Value = serde_saphyr::from_str(&file(&Images::default(), "Chart.yaml")).unwrap();
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!("1.20.0"), &json!("devel")));
}

#[test]
fn helm_template_braces_are_escaped() {
    assert_eq!(template("a: '{{ $labels.node }}'"), "a: '{{ \"{{\" }} $labels.node }}'");
}

#[test]
fn virt_operator_gets_each_image_with_a_digest() {
    let names = INSTALLED.map(|name| format!("\"{name}\"")).join(" ");
    let helpers = file(&pinned(), "templates/_helpers.tpl");
    assert!(helpers.contains(&format!("list {names} }}}}")), "{names}");
}
