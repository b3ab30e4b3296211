use super::*;

#[test]
fn access_credential_rules() {
    let source = json!({"secret": {"secretName": "keys"}});
    let ssh = |method: Value| json!([{"sshPublicKey": {"source": source, "propagationMethod": method}}]);
    let at = "/spec/accessCredentials";
    let field = "spec.accessCredentials[0]";
    let method = "spec.accessCredentials[0].sshPublicKey.propagationMethod";
    let agent = json!({"qemuGuestAgent": {"users": ["a"]}});
    let (drive, cloud, nobody, none, two) = (
        ssh(json!({"configDrive": {}})),
        ssh(json!({"noCloud": {}})),
        ssh(json!({"qemuGuestAgent": {"users": []}})),
        ssh(json!({})),
        ssh(json!({"noCloud": {}, "qemuGuestAgent": {"users": ["a"]}})),
    );
    let agent_alone = ssh(agent.clone());
    let no_source = json!([{"sshPublicKey": {"source": {}, "propagationMethod": agent}}]);
    let password = json!({"source": source, "propagationMethod": {"qemuGuestAgent": {}}});
    let both =
        json!([{"sshPublicKey": {"source": source, "propagationMethod": agent}, "userPassword": password}]);
    let poor = json!([{"userPassword": {"source": {}, "propagationMethod": {}}}]);
    check(rows![
        [at => [{}]] => field, "spec.accessCredentials[0] must have exactly one access credential type set";
        [at => both] => field, "spec.accessCredentials[0] must have exactly one access credential type set";
        [at => drive] => method, "spec.accessCredentials[0] requires a configDrive volume to exist when the configDrive propagationMethod is in use.";
        [at => cloud, "/spec/volumes/1" => {"name": "seed", "emptyDisk": {"capacity": "1Mi"}}] => method, "spec.accessCredentials[0] requires a noCloud volume to exist when the noCloud propagationMethod is in use.";
        [at => nobody] => "spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users", "spec.accessCredentials[0] requires at least one user to be present in the users list";
        [at => none] => method, "spec.accessCredentials[0] must have exactly one propagationMethod set";
        [at => two] => method, "spec.accessCredentials[0] must have exactly one propagationMethod set";
        [at => no_source] => "spec.accessCredentials[0].sshPublicKey.source", "spec.accessCredentials[0] must have exactly one source set";
        [at => poor]
            => "spec.accessCredentials[0].userPassword.source", "must have exactly one source set",
               "spec.accessCredentials[0].userPassword.propagationMethod", "must have exactly one propagationMethod set";
    ]);
    let right = json!([{"userPassword": password}]);
    for fine in [&right, &cloud, &agent_alone] {
        assert_eq!(causes_of(&with(super::right(), at, fine.clone())), [], "{fine}");
    }
    check(rows![
        [at => right, "/spec/accessCredentials/0/userPassword/source/secret/secretName" => "../a"]
            => "spec.accessCredentials[0].userPassword.source.secret.secretName", "'../a' is not the name of a secret";
        [at => right, "/spec/accessCredentials/0/userPassword/source/secret/secretName" => ""]
            => "spec.accessCredentials[0].userPassword.source.secret.secretName", "is not the name of a secret";
    ]);
}
