// The first process of every pod sandbox.
module barevirt.dev/cluster-up/pause

go 1.24.0
