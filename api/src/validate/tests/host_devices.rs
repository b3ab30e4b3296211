use super::*;

#[test]
fn claim_rules() {
    let (gpus, at) = ("/spec/domain/devices/gpus", "/spec/resourceClaims");
    let list = "spec.domain.devices.gpus";
    let claims = "spec.resourceClaims";
    let claimed = json!({"name": "a", "claimName": "c", "requestName": "r"});
    let named = json!({"name": "b", "deviceName": "x/y"});
    let known = json!([{"name": "c", "resourceClaimName": "c"}]);
    check_with(
        &Gates::all(),
        rows![
            [at => [{"name": "", "resourceClaimName": "c"}]] => "spec.resourceClaims[0].name", "spec.resourceClaims[0].name is a required field";
            [at => [{"name": "A", "resourceClaimName": "c"}]] => "spec.resourceClaims[0].name", "spec.resourceClaims[0].name does not conform to the kubernetes DNS_LABEL rules: ";
            [at => [{"name": "c", "resourceClaimName": "c"}, {"name": "c", "resourceClaimTemplateName": "c"}]] => "spec.resourceClaims[1].name", "duplicate resourceClaims name \"c\"";
            [at => [{"name": "c"}]] => "spec.resourceClaims[0]", "must specify one of: resourceClaimName, resourceClaimTemplateName";
            [at => [{"name": "c", "resourceClaimName": "c", "resourceClaimTemplateName": "c"}]] => "spec.resourceClaims[0]", "at most one of resourceClaimName or resourceClaimTemplateName may be specified";
            [at => [{"name": "c", "resourceClaimName": "C D"}]] => "spec.resourceClaims[0].resourceClaimName", "'C D' is not DNS labels";
            [gpus => [claimed]] => claims, "vmi.spec.resourceClaims must specify all claims used in vmi.spec.domain.devices.gpus and vmi.spec.domain.devices.hostDevices";
            [gpus => [claimed, named], at => known] => list, "vmi.spec.domain.devices.gpus contains both DRA and non-DRA GPUs; each GPU must be either DRA or non-DRA";
            [gpus => [{"name": "a"}]] => list, "vmi.spec.domain.devices.gpus contains GPUs without deviceName or claimRequest; each GPU must specify either a deviceName or a claimRequest";
            [gpus => [{"name": "a", "deviceName": "x/y", "claimName": "c"}]] => list, "vmi.spec.domain.devices.gpus contains GPUs with both deviceName and claimRequest";
            [gpus => [{"name": "a", "claimName": "c"}]] => "spec.domain.devices.gpus[0].requestName", "requestName is required for DRA GPU";
            [gpus => [claimed, claimed], at => known] => "spec.domain.devices.gpus[1]", "duplicate claimName/requestName pair \"c/r\"";
            [gpus => [claimed], "/spec/domain/devices/hostDevices" => [claimed, named], at => known] => "spec.domain.devices.hostDevices[0]", "duplicate claimName/requestName pair \"c/r\" between GPUs[0] and HostDevices[0]";
        ],
    );
}

#[test]
fn rules_of_networks_by_claim() {
    let at = "/spec/resourceClaims";
    let known = json!([{"name": "c", "resourceClaimName": "c"}]);
    let network = |claim: Value| json!([{"name": "default", "resourceClaim": claim}]);
    let (whole, poor) =
        (network(json!({"claimName": "c", "requestName": "r"})), network(json!({"requestName": "r"})));
    let two = json!([{"name": "default", "resourceClaim": {"claimName": "c", "requestName": "r"}}, {"name": "b", "resourceClaim": {"claimName": "c", "requestName": "r"}}]);
    let mixed = json!([{"name": "default", "resourceClaim": {"claimName": "c", "requestName": "r"}}, {"name": "b", "multus": {"networkName": "x"}}]);
    let one = json!([{"name": "default", "sriov": {}}]);
    let both = json!([{"name": "default", "sriov": {}}, {"name": "b", "sriov": {}}]);
    let bridge = json!([{"name": "default", "bridge": {}}]);
    let interfaces = "/spec/domain/devices/interfaces";
    let networks = "/spec/networks";
    check_with(
        &Gates::all(),
        rows![
            [networks => whole, interfaces => one] => "spec.networks[0].resourceClaim.claimName", "network references resourceClaim \"c\" which is not defined in spec.resourceClaims";
            [networks => poor, interfaces => one] => "spec.networks[0].resourceClaim.claimName", "claimName is required for DRA network";
            [networks => whole, interfaces => bridge, at => known] => "spec.domain.devices.interfaces", "DRA network \"default\" requires an SR-IOV or binding plugin interface";
            [networks => two, interfaces => both, at => known] => "spec.networks[1]", "duplicate claimName/requestName combination \"c/r\"";
            [networks => mixed, interfaces => both, at => known] => "spec.networks", "mixing Multus and DRA resourceClaim networks in the same VMI is not supported";
        ],
    );
}

#[test]
fn devices_by_resource() {
    let (gpus, others) = ("/spec/domain/devices/gpus", "/spec/domain/devices/hostDevices");
    let named = |name: &str, resource: &str| json!({"name": name, "deviceName": resource});
    check_with(
        &Gates::all(),
        rows![
            [gpus => [named("a", "x/y"), named("a", "x/y")]] => "spec.domain.devices.gpus[1].name", "spec.domain.devices.gpus[1].name 'a' is given before";
            [others => [named("a", "x y/z")]] => "spec.domain.devices.hostDevices[0].deviceName", "spec.domain.devices.hostDevices[0].deviceName 'x y/z' is not the name of a resource";
        ],
    );
}
