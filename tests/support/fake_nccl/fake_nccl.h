// libnccl_fake.so stands in for libnccl where there is no GPU: it moves host memory between threads
// and processes of one machine, and is stricter than NCCL. Loaded as any libnccl, by its path. What
// it does more than NCCL is here and in the environment:
//   EPLB_FAKE_NCCL_FAULTS   what goes wrong (faults.h); read when a communicator begins
//   EPLB_FAKE_NCCL_RULES    "off" allows more than one send and one receive in a group
//   EPLB_FAKE_NCCL_LOG      a folder for a file per rank with what was asked (group_log.h)
//   EPLB_FAKE_NCCL_VERSION  the version code it gives itself, nccl.h's when not set
// In a program that runs on the stand-in for CUDA (tests/support/fake_cuda) groups are operations
// of its streams: ncclCommGetAsyncError says ncclInProgress for some polls, as while a thread
// launches a kernel, then ncclSuccess while bytes still move. What a group receives into holds
// poison until the bytes are there. These are violations, which end the process with
// kFakeNcclViolationExit:
//  - what is sent changes between the call and the end of the group
//  - memory is freed that a group still uses, or that is registered
//  - a stream or memory of another device, memory that is registered at one end of a pair only
//  - calls of two threads at once on a communicator, a call on one that was aborted
//  - registrations that are left when the process exits
// In other programs streams are ignored, memory is the host's, and ncclCommGetAsyncError says
// ncclInProgress until the bytes of a group have moved.
// A group that the other end does not have with the same operations and sizes is an error at both
// ends, where NCCL hangs.
#pragma once

#include <cstdint>

inline constexpr int kFakeNcclViolationExit = 87;

extern "C" {
// All groups of the process so far. Valid until the thread's next call.
const char* fakeNcclGetLog();
void fakeNcclClearLog();
// In place of the variable, for communicators that begin from now on; null: the variable again. 0,
// or -1 and a line on stderr when the text cannot be read.
int fakeNcclSetFaults(const char* text);
// Violations so far, a line each, which are forgotten. Valid until the thread's next call.
const char* fakeNcclTakeViolations();
// Communicators that were begun and not aborted.
int fakeNcclNumCommunicators();
// Bytes of the device's memory that the kernels of all groups so far read and wrote, as NCCL's do:
// each byte once where memory is registered, and at each end twice more through a buffer of NCCL's
// where it is not.
int64_t fakeNcclBytesPassed();
}
