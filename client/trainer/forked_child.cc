#include "client/trainer/forked_child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace eplb {

absl::Status UseClientInForkedChild(std::unique_ptr<Client>& client) {
  const std::vector<int64_t> counts(static_cast<size_t>(client->placement().num_experts), 1);
  const pid_t child = fork();
  if (child < 0) return absl::UnavailableError("fork failed");
  if (child == 0) {
    const absl::StatusOr<BoundaryResult> boundary = client->StepBoundary(0);
    const bool nothing_done = client->Record(0, counts).ok() && boundary.ok() && !boundary->voted &&
                              !client->stats().connected;
    client->Close("child");
    client.reset();
    _exit(nothing_done ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) == child && status == 0) return absl::OkStatus();
  return absl::InternalError("a forked child could not leave the client alone");
}

}  // namespace eplb
