//! The rights of KubeVirt's roles: the tests ask the API server about every role, resource and verb, and
//! check the answers of allowed calls that are not built yet.

use anyhow::{Context, Result, bail, ensure};
use barevirt_e2e::command::{Output, cluster_script, kubectl, run, succeed, try_kubectl};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;

/// The columns of the tables. `nobody` is an authenticated user without a role.
const ROLES: [&str; 5] = ["admin", "edit", "view", "migrate", "nobody"];

const VERBS: [(char, &str); 8] = [
    ('g', "get"),
    ('l', "list"),
    ('w', "watch"),
    ('c', "create"),
    ('u', "update"),
    ('p', "patch"),
    ('d', "delete"),
    ('D', "deletecollection"),
];

/// The rights of a user in a namespace where they have that role: `admin`, `edit` and `view` are Kubernetes'
/// own roles, `migrate` is `kubevirt.io:migrate`.
const IN_A_NAMESPACE: &str = "
kubevirt.io virtualmachines                                   glwcupdD  glwcupd  glw  -         -
kubevirt.io virtualmachineinstances                           glwcupdD  glwcupd  glw  -         -
kubevirt.io virtualmachineinstancepresets                     glwcupdD  glwcupd  glw  -         -
kubevirt.io virtualmachineinstancereplicasets                 glwcupdD  glwcupd  glw  -         -
kubevirt.io virtualmachineinstancemigrations                  glw       glw      glw  glwcupdD  -
kubevirt.io kubevirts                                         glwcupdD  gl       gl   gl        gl
kubevirt.io virtualmachines/status                            -         -        -    -         -
kubevirt.io virtualmachineinstances/status                    -         -        -    -         -
kubevirt.io virtualmachineinstancemigrations/status           -         -        -    -         -
kubevirt.io virtualmachineinstancereplicasets/scale           -         -        -    -         -
kubevirt.io kubevirts/status                                  -         -        -    -         -
snapshot.kubevirt.io virtualmachinesnapshots                  glwcupdD  glwcupd  glw  -         -
snapshot.kubevirt.io virtualmachinesnapshotcontents           glwcupdD  glwcupd  glw  -         -
snapshot.kubevirt.io virtualmachinerestores                   glwcupdD  glwcupd  glw  -         -
backup.kubevirt.io virtualmachinebackups                      glwcupdD  glwcupd  glw  -         -
backup.kubevirt.io virtualmachinebackuptrackers               glwcupdD  glwcupd  glw  -         -
export.kubevirt.io virtualmachineexports                      glwcupdD  glwcupd  glw  -         -
clone.kubevirt.io virtualmachineclones                        glwcupdD  glwcupd  glw  -         -
instancetype.kubevirt.io virtualmachineinstancetypes          glwcupdD  glwcupd  glw  -         -
instancetype.kubevirt.io virtualmachinepreferences            glwcupdD  glwcupd  glw  -         -
pool.kubevirt.io virtualmachinepools                          glwcupdD  glwcupd  glw  -         -
cdi.kubevirt.io datavolumes                                   glwcupdD  glwcupd  glw  -         -
cdi.kubevirt.io datavolumes/status                            -         -        -    -         -
cdi.kubevirt.io volumeclonesources                            glwcupdD  glwcupd  glw  -         -
cdi.kubevirt.io volumeimportsources                           glwcupdD  glwcupd  glw  -         -
cdi.kubevirt.io volumeuploadsources                           glwcupdD  glwcupd  glw  -         -
pool.kubevirt.io virtualmachinepools/scale                    -         -        -    -         -
plugin.kubevirt.io plugins                                    -         -        -    -         -
template.kubevirt.io virtualmachinetemplates                  -         -        -    -         -
subresources.kubevirt.io virtualmachines                      -         -        -    -         -
subresources.kubevirt.io virtualmachines/start                u         u        -    -         -
subresources.kubevirt.io virtualmachines/stop                 u         u        -    -         -
subresources.kubevirt.io virtualmachines/restart              u         u        -    -         -
subresources.kubevirt.io virtualmachines/migrate              -         -        -    u         -
subresources.kubevirt.io virtualmachines/expand-spec          g         g        g    -         -
subresources.kubevirt.io virtualmachines/addvolume            u         u        -    -         -
subresources.kubevirt.io virtualmachines/removevolume         u         u        -    -         -
subresources.kubevirt.io virtualmachines/memorydump           u         u        -    -         -
subresources.kubevirt.io virtualmachines/removememorydump     u         u        -    -         -
subresources.kubevirt.io virtualmachines/objectgraph          g         g        g    -         -
subresources.kubevirt.io virtualmachines/evacuate/cancel      u         u        -    -         -
subresources.kubevirt.io virtualmachines/portforward          g         g        -    -         -
subresources.kubevirt.io virtualmachineinstances              -         -        -    -         -
subresources.kubevirt.io virtualmachineinstances/console      g         g        -    -         -
subresources.kubevirt.io virtualmachineinstances/vnc          g         g        -    -         -
subresources.kubevirt.io virtualmachineinstances/vnc/screenshot  g      -        -    -         -
subresources.kubevirt.io virtualmachineinstances/usbredir     g         g        -    -         -
subresources.kubevirt.io virtualmachineinstances/vsock        -         -        -    -         -
subresources.kubevirt.io virtualmachineinstances/portforward  g         g        -    -         -
subresources.kubevirt.io virtualmachineinstances/qmp          gc        gc       gc   -         -
subresources.kubevirt.io virtualmachineinstances/qmp/harmless    c      c        -    -         -
subresources.kubevirt.io virtualmachineinstances/qmp/disruptive  c      -        -    -         -
subresources.kubevirt.io virtualmachineinstances/debug        g         g        g    -         -
subresources.kubevirt.io virtualmachineinstances/pause        u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/unpause      u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/freeze       u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/unfreeze     u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/softreboot   u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/reset        u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/guestosinfo  g         g        g    -         -
subresources.kubevirt.io virtualmachineinstances/userlist     g         g        g    -         -
subresources.kubevirt.io virtualmachineinstances/filesystemlist  g      g        g    -         -
subresources.kubevirt.io virtualmachineinstances/addvolume    u         u        -    -         -
subresources.kubevirt.io virtualmachineinstances/removevolume  u        u        -    -         -
subresources.kubevirt.io virtualmachineinstances/objectgraph  g         g        g    -         -
subresources.kubevirt.io virtualmachineinstances/sev/fetchcertchain          g  g  g  -  -
subresources.kubevirt.io virtualmachineinstances/sev/querylaunchmeasurement  g  g  g  -  -
subresources.kubevirt.io virtualmachineinstances/sev/setupsession            u  u  -  -  -
subresources.kubevirt.io virtualmachineinstances/sev/injectlaunchsecret      u  u  -  -  -
subresources.kubevirt.io virtualmachineinstances/evacuate/cancel             u  u  -  -  -
subresources.kubevirt.io virtualmachineinstances/backup       -         -        -    -         -
subresources.kubevirt.io virtualmachineinstances/redefine-checkpoint         -  -  -  -  -
subresources.kubevirt.io expand-vm-spec                       u         u        u    -         -
";

/// Cluster-scoped resources: a role in a namespace gives no rights to them.
const OUTSIDE_BY_A_NAMESPACE: &str = "
cdi.kubevirt.io cdiconfigs                                    glw       glw      glw  glw       glw
cdi.kubevirt.io storageprofiles                               glw       glw      glw  glw       glw
instancetype.kubevirt.io virtualmachineclusterinstancetypes   glw       glw      glw  glw       glw
instancetype.kubevirt.io virtualmachineclusterpreferences     glw       glw      glw  glw       glw
migrations.kubevirt.io migrationpolicies                      -         -        -    -         -
subresources.kubevirt.io version                              gl        gl       gl   gl        gl
subresources.kubevirt.io guestfs                              gl        gl       gl   gl        gl
subresources.kubevirt.io dump-cluster-profiler                -         -        -    -         -
";

/// The same for users who have the roles in the whole cluster.
const OUTSIDE_BY_THE_CLUSTER: &str = "
cdi.kubevirt.io cdiconfigs                                    glw       glw      glw  glw       glw
cdi.kubevirt.io storageprofiles                               glw       glw      glw  glw       glw
instancetype.kubevirt.io virtualmachineclusterinstancetypes   glwcupdD  glwcupd  glw  glw       glw
instancetype.kubevirt.io virtualmachineclusterpreferences     glwcupdD  glwcupd  glw  glw       glw
migrations.kubevirt.io migrationpolicies                      glw       glw      glw  -         -
subresources.kubevirt.io version                              gl        gl       gl   gl        gl
subresources.kubevirt.io guestfs                              gl        gl       gl   gl        gl
subresources.kubevirt.io dump-cluster-profiler                -         -        -    -         -
";

/// One question to the API server, and what it should answer.
#[derive(Clone)]
struct Question {
    user: String,
    namespace: Option<String>,
    group: String,
    resource: String,
    subresource: Option<String>,
    verb: &'static str,
    wanted: bool,
}

/// All questions of a table: each role, resource and verb.
fn questions(table: &str, people: &str, namespace: Option<&str>) -> Result<Vec<Question>> {
    let mut questions = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [group, path, columns @ ..] = words.as_slice() else { bail!("no line of a table: {line}") };
        ensure!(columns.len() == ROLES.len(), "not {} columns: {line}", ROLES.len());
        let (resource, subresource) = match path.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (*path, None),
        };
        for (role, column) in ROLES.iter().zip(columns) {
            let known = |letter| letter == '-' || VERBS.iter().any(|(known, _)| *known == letter);
            ensure!(column.chars().all(known), "{column} in: {line}");
            questions.extend(VERBS.map(|(letter, verb)| Question {
                user: format!("{people}:{role}"),
                namespace: namespace.map(str::to_owned),
                group: (*group).to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.clone(),
                verb,
                wanted: column.contains(letter),
            }));
        }
    }
    Ok(questions)
}

impl Question {
    fn review(&self) -> Value {
        let mut attributes = json!({ "group": self.group, "resource": self.resource, "verb": self.verb });
        if let Some(subresource) = &self.subresource {
            attributes["subresource"] = json!(subresource);
        }
        if let Some(namespace) = &self.namespace {
            attributes["namespace"] = json!(namespace);
        }
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": self.user, "groups": ["system:authenticated"], "resourceAttributes": attributes,
            },
        })
    }

    fn describe(&self) -> String {
        let subresource = self.subresource.as_ref().map_or_else(String::new, |name| format!("/{name}"));
        format!("{} {} {} {}{subresource}", self.user, self.verb, self.group, self.resource)
    }
}

/// Asks all questions with one command, which sends one review after the other.
fn ask(questions: &[Question]) -> Result<Vec<bool>> {
    let reviews: Vec<Value> = questions.iter().map(Question::review).collect();
    let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
    file.write_all(json!({ "apiVersion": "v1", "kind": "List", "items": reviews }).to_string().as_bytes())?;
    let path = file.path().to_string_lossy().into_owned();
    let text = kubectl(&["create", "--validate=false", "-o", "json", "-f", &path])?;
    let mut answers = Vec::new();
    for (answer, review) in serde_json::Deserializer::from_str(&text).into_iter::<Value>().zip(&reviews) {
        let answer = answer.context("kubectl create answers with JSON")?;
        ensure!(
            answer["spec"] == review["spec"],
            "{} was asked, {} answered",
            review["spec"],
            answer["spec"]
        );
        // An answer must have a status.
        answers.push(answer["status"]["allowed"].as_bool().with_context(|| format!("no answer: {answer}"))?);
    }
    ensure!(answers.len() == questions.len(), "{} of {} were answered", answers.len(), questions.len());
    Ok(answers)
}

/// Asks, and reports all unexpected answers.
fn compare(questions: &[Question]) -> Result<()> {
    let answers = ask(questions)?;
    let wrong: Vec<String> = questions
        .iter()
        .zip(answers)
        .filter(|(question, allowed)| question.wanted != *allowed)
        .map(|(question, allowed)| {
            format!(
                "{}: {}",
                question.describe(),
                if allowed { "should be denied" } else { "should be allowed" }
            )
        })
        .collect();
    ensure!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), questions.len(), wrong.join("\n"));
    Ok(())
}

fn cluster_role(role: &str) -> String {
    if role == "migrate" { "kubevirt.io:migrate".to_owned() } else { role.to_owned() }
}

/// Waits until bindings that were just made are known to the API server.
fn wait_bound(questions: &[Question]) -> Result<()> {
    // One allowed question of each role, since bindings become known one after the other.
    let allowed: Vec<Question> = ROLES
        .iter()
        .filter_map(|role| {
            let of_role =
                |question: &&Question| question.wanted && question.user.ends_with(&format!(":{role}"));
            questions.iter().find(of_role).cloned()
        })
        .collect();
    ensure!(!allowed.is_empty(), "nobody may do anything");
    wait::until_true("the bindings to be known", SOON, || Ok(ask(&allowed)?.into_iter().all(|yes| yes)))
}

/// Binds the roles in the namespace, to users named after it.
pub(crate) fn bind_in(namespace: &Namespace) -> Result<String> {
    let people = format!("{}:in", namespace.name());
    for role in ROLES.iter().filter(|role| **role != "nobody") {
        let name = format!("e2e-{role}");
        let role_flag = format!("--clusterrole={}", cluster_role(role));
        namespace.kubectl(&[
            "create",
            "rolebinding",
            &name,
            &role_flag,
            &format!("--user={people}:{role}"),
        ])?;
    }
    Ok(people)
}

/// Bindings in the whole cluster, which are removed however the test ends.
struct ClusterBindings {
    names: Vec<String>,
}

impl ClusterBindings {
    fn make(namespace: &Namespace) -> Result<(Self, String)> {
        let people = format!("{}:all", namespace.name());
        let mut bindings = Self { names: Vec::new() };
        for role in ROLES.iter().filter(|role| **role != "nobody") {
            let name = format!("{}-{role}", namespace.name());
            let role_flag = format!("--clusterrole={}", cluster_role(role));
            let user_flag = format!("--user={people}:{role}");
            bindings.names.push(name.clone());
            kubectl(&["create", "clusterrolebinding", &name, &role_flag, &user_flag])?;
        }
        Ok((bindings, people))
    }
}

impl Drop for ClusterBindings {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = try_kubectl(&["delete", "clusterrolebinding", name, "--ignore-not-found"]) {
                eprintln!("cluster role binding {name} is left: {error:#}");
            }
        }
    }
}

#[test]
fn each_role_in_a_namespace_allows_what_it_should_and_nothing_more() {
    in_namespace("roles", |namespace| {
        let people = bind_in(namespace)?;
        let mut all = questions(IN_A_NAMESPACE, &people, Some(namespace.name()))?;
        wait_bound(&all)?;
        all.extend(questions(OUTSIDE_BY_A_NAMESPACE, &people, None)?);
        compare(&all)?;
        // In another namespace they have only the rights of everybody.
        let reads =
            all.iter().filter(|question| question.resource == "virtualmachines" && question.verb == "get");
        let elsewhere: Vec<Question> = reads
            .cloned()
            .map(|question| Question { namespace: Some("default".into()), wanted: false, ..question })
            .collect();
        compare(&elsewhere)
    });
}

#[test]
fn each_role_in_the_cluster_allows_what_is_in_no_namespace() {
    in_namespace("croles", |namespace| {
        let (_bindings, people) = ClusterBindings::make(namespace)?;
        // `migrate` has no rights here, so the wait for its binding uses another table.
        let mut inside = questions(IN_A_NAMESPACE, &people, Some(namespace.name()))?;
        inside.retain(|question| question.resource == "virtualmachineinstancemigrations");
        wait_bound(&inside)?;
        compare(&questions(OUTSIDE_BY_THE_CLUSTER, &people, None)?)
    });
}

/// Discovery and the table have the same calls.
#[test]
fn the_calls_announced_are_the_calls_of_the_table() -> Result<()> {
    let in_table: BTreeSet<String> = IN_A_NAMESPACE
        .lines()
        .filter_map(|line| line.strip_prefix("subresources.kubevirt.io ")?.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    for version in ["v1", "v1alpha3"] {
        let path = format!("/apis/subresources.kubevirt.io/{version}");
        let list: Value = serde_json::from_str(&kubectl(&["get", "--raw", &path])?)?;
        let resources = list["resources"].as_array().cloned().unwrap_or_default();
        let announced: BTreeSet<String> =
            resources.iter().filter_map(|entry| Some(entry["name"].as_str()?.to_owned())).collect();
        ensure!(announced == in_table, "announced: {announced:?}\nin the table: {in_table:?}");
    }
    Ok(())
}

/// `kubectl` works with discovery and the OpenAPI documents.
#[test]
fn kubectl_uses_discovery_and_the_openapi_documents() {
    in_namespace("discovery", |namespace| {
        let table = kubectl(&["api-resources", "--api-group=kubevirt.io", "--no-headers"])?;
        ensure!(table.contains("virtualmachines") && table.contains("vmi,vmis"), "{table}");
        // Short names and plain names mean the custom resources, not the group of the calls.
        namespace.apply(&guest::machine("vm", "Halted"))?;
        for name in ["vm", "virtualmachine", "virtualmachines"] {
            let found = namespace.kubectl(&["get", name, "vm", "-o", "name"])?;
            ensure!(found.trim() == "virtualmachine.kubevirt.io/vm", "{found}");
        }
        let version: Value =
            serde_json::from_str(&kubectl(&["get", "--raw", "/apis/subresources.kubevirt.io/v1/version"])?)?;
        ensure!(version["gitVersion"].as_str().is_some_and(|text| text.starts_with('v')), "{version}");
        // The aggregator fetches documents every now and then.
        let start = "/namespaces/{namespace}/virtualmachines/{name}/start";
        for (document, group) in
            [("/openapi/v3/apis/subresources.kubevirt.io/v1", "v1"), ("/openapi/v2", "v1alpha3")]
        {
            let path = format!("/apis/subresources.kubevirt.io/{group}{start}");
            wait::until_true(&format!("{document} to describe {path}"), SOON * 2, || {
                let text = kubectl(&["get", "--raw", document])?;
                let read: Value = serde_json::from_str(&text)?;
                Ok(read["paths"][&path]["put"]["operationId"] == format!("{group}Start"))
            })?;
        }
        Ok(())
    });
}

#[test]
fn can_i_answers_for_calls() {
    in_namespace("can-i", |namespace| {
        let people = bind_in(namespace)?;
        let can = |role: &str| {
            let user = format!("--as={people}:{role}");
            let group = "--as-group=system:authenticated";
            let call = ["auth", "can-i", "update", "virtualmachines.subresources.kubevirt.io/vm"];
            let flags = ["--subresource=start", "-n", namespace.name(), &user, group];
            try_kubectl(&[&call[..], &flags[..]].concat())
        };
        wait::until_true("edit may start machines", SOON, || Ok(can("edit")?.stdout.trim() == "yes"))?;
        for role in ["view", "migrate", "nobody"] {
            let output = can(role)?;
            ensure!(output.stdout.trim() == "no", "{role}: {}", output.text());
        }
        Ok(())
    });
}

/// Sends a request with a body to any path, as that user.
fn raw(verb: &str, path: &str, user: Option<&str>) -> Result<Output> {
    let mut command = cluster_script("kubectl.sh");
    command.args([verb, "--raw", path]);
    if verb != "get" {
        command.args(["-f", "-"]);
    }
    if let Some(user) = user {
        command.args([&format!("--as={user}"), "--as-group=system:authenticated"]);
    }
    run(&mut command, Some("{}"))
}

#[test]
fn calls_on_absent_features_say_so() {
    in_namespace("notyet", |namespace| {
        let people = bind_in(namespace)?;
        let edit = format!("{people}:edit");
        let base = format!("/apis/subresources.kubevirt.io/v1/namespaces/{}", namespace.name());
        let says = |verb: &str, path: &str, user: Option<&str>, words: &str| -> Result<()> {
            let output = raw(verb, &format!("{base}/{path}"), user)?;
            ensure!(output.code != 0 && output.text().contains(words), "{path}: {}", output.text());
            Ok(())
        };
        let change = "virtualmachines/vm/memorydump";
        let refusal = "virtualmachines/memorydump is not supported yet";
        wait::until_true("the binding to be known", SOON, || {
            Ok(raw("replace", &format!("{base}/{change}"), Some(&edit))?.text().contains(refusal))
        })?;
        // Known and allowed, but not built.
        says(
            "get",
            "virtualmachineinstances/vm/sev/fetchcertchain",
            None,
            "sev/fetchcertchain is not supported yet",
        )?;
        // Known, but not allowed.
        says("replace", change, Some(&format!("{people}:view")), "cannot update resource")?;
        says("get", "virtualmachineinstances/vm/vsock", Some(&edit), "cannot get resource")?;
        // A part of the path that the API server does not check, so virt-api asks for an access review.
        says(
            "get",
            "virtualmachineinstances/vm/vnc/screenshot",
            Some(&edit),
            "virtualmachineinstances/vnc/screenshot",
        )?;
        says("get", "virtualmachineinstances/vm/vnc/screenshot", Some(&edit), "cannot get resource")?;
        // Not known, or not with this method.
        says(
            "get",
            "virtualmachineinstances/vm/selfdestruct",
            None,
            "could not find the requested resource",
        )?;
        says("get", "virtualmachines/vm/start", None, "does not allow this method")?;
        let guestfs =
            raw("get", "/apis/subresources.kubevirt.io/v1/guestfs", Some(&format!("{people}:nobody")))?;
        ensure!(guestfs.text().contains("guestfs is not supported yet"), "{}", guestfs.text());
        Ok(())
    });
}

/// A user with `edit` applies a manifest and runs a command, and can do nothing else.
#[test]
fn a_person_with_edit_works_with_machines() {
    in_namespace("person", |namespace| {
        let people = bind_in(namespace)?;
        let user = format!("--as={people}:edit");
        let group = "--as-group=system:authenticated";
        let manifest = guest::machine("vm", "Halted").to_string();
        let apply = || {
            let mut command = cluster_script("kubectl.sh");
            command.args(["apply", "-n", namespace.name(), "-f", "-", &user, group]);
            run(&mut command, Some(&manifest))
        };
        wait::until_true("the machine to be taken", SOON, || Ok(apply()?.code == 0))?;
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachines/vm/start",
            namespace.name()
        );
        let mut start = cluster_script("kubectl.sh");
        start.args(["replace", "--raw", &path, "-f", "-", &user, group]);
        succeed(&mut start, Some("{}"))?;
        let vm = namespace.need("vm", "vm")?;
        ensure!(vm["spec"]["runStrategy"] == "Always", "{}", vm["spec"]);
        let output = namespace.try_kubectl(&["delete", "vm", "--all", &user, group])?;
        // kubectl deletes the objects one by one, which `edit` allows.
        ensure!(output.code == 0, "{}", output.text());
        let status = r#"{"status":{"created":true}}"#;
        namespace.apply(&guest::machine("other", "Halted"))?;
        let patch =
            ["patch", "vm", "other", "--subresource=status", "--type=merge", "-p", status, &user, group];
        let output = namespace.try_kubectl(&patch)?;
        ensure!(output.code != 0 && output.text().contains("forbidden"), "{}", output.text());
        Ok(())
    });
}
