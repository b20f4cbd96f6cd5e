// libnccl_fake.so stands in for libnccl where there is no GPU: it moves host memory between threads
// and processes of one machine, and is stricter than NCCL. Loaded as any libnccl, by its path. What
// it does more than NCCL is here and in the environment:
//   EPLB_FAKE_NCCL_FAULTS   what goes wrong (faults.h); read when a communicator begins
//   EPLB_FAKE_NCCL_RULES    "off" allows more than one send and one receive in a group
//   EPLB_FAKE_NCCL_LOG      a folder for a file per rank with what was asked (group_log.h)
//   EPLB_FAKE_NCCL_VERSION  the version code it gives itself, nccl.h's when not set
// Where it differs from NCCL: ncclCommGetAsyncError says ncclInProgress until the bytes of a group
// have moved, since there is no stream to ask; a group that the other end does not have with the
// same operations and sizes is an error at both ends, not a hang.
#ifndef EPLB_TESTS_SUPPORT_FAKE_NCCL_FAKE_NCCL_H_
#define EPLB_TESTS_SUPPORT_FAKE_NCCL_FAKE_NCCL_H_

extern "C" {
// All groups of the process so far. Valid until the thread's next call.
const char* fakeNcclGetLog();
void fakeNcclClearLog();
// In place of the variable, for communicators that begin from now on; null: the variable again. 0,
// or -1 and a line on stderr when the text cannot be read.
int fakeNcclSetFaults(const char* text);
}

#endif  // EPLB_TESTS_SUPPORT_FAKE_NCCL_FAKE_NCCL_H_
