// What `eplbctl doctor` says of the way that rows take.
#ifndef EPLB_CLIENT_CLI_DAEMON_TRANSPORT_CHECKS_H_
#define EPLB_CLIENT_CLI_DAEMON_TRANSPORT_CHECKS_H_

#include <vector>

#include "client/cli/daemon/checks.h"

namespace eplb::cli {

// "transport": all ranks use the same, and rows in GPU memory do not go through the host. "nccl",
// where NCCL carries them: ranks agree on library and settings, which are all shown, those that
// nobody set with NCCL's default; what could be faster is a note, no finding.
std::vector<Check> CheckTransport(const v1::JobStatus& job);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_TRANSPORT_CHECKS_H_
