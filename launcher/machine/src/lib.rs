//! From a VirtualMachineInstance to QEMU's devices, command line and QMP steps. Pure.
