#include "client/migration/transport_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/migration/device_transports.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// ok when all ranks say ok. errors: FailedPrecondition naming the first rank that does not.
absl::Status Agree(const absl::Status& own, int32_t world_size, const Exchange& exchange) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        exchange(own.ok() ? "" : absl::StrCat("!", own.message())));
  if (all.size() != static_cast<size_t>(world_size)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the exchange gave ", all.size(), " answers, world_size is ", world_size));
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, ": ", absl::string_view(all[rank]).substr(1)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TransportCandidate>> CandidatesOf(const RowMoverOptions& options) {
  const bool any = options.name == "auto";
  if (!options.memory.device.has_value()) {
    if (!any && options.name != "host") {
      return absl::InvalidArgumentError(
          absl::StrCat("transport ", options.name,
                       " needs expert tensors in GPU memory, these lie in host memory"));
    }
    return std::vector<TransportCandidate>{
        {.name = "host",
         .prepare = [] { return absl::OkStatus(); },
         .connect =
             [transport = options.transport](const Exchange& exchange) {
               return MakeHostTransport(transport, exchange);
             }}};
  }
  std::vector<TransportCandidate> candidates;
  for (TransportCandidate& candidate : DeviceCandidates(options)) {
    if (any || candidate.name == options.name) candidates.push_back(std::move(candidate));
  }
  return candidates;
}

}  // namespace

absl::StatusOr<TransportChoice> FirstUsable(const std::vector<TransportCandidate>& candidates,
                                            const TransportOptions& options,
                                            const Exchange& exchange) {
  std::vector<std::string> failures;
  for (const TransportCandidate& candidate : candidates) {
    absl::Status status = Agree(candidate.prepare(), options.world_size, exchange);
    if (status.ok()) {
      absl::StatusOr<std::unique_ptr<Transport>> transport = candidate.connect(exchange);
      status = Agree(transport.status(), options.world_size, exchange);
      if (status.ok()) {
        return TransportChoice{.transport = *std::move(transport),
                               .passed_over = absl::StrJoin(failures, "; ")};
      }
    }
    failures.push_back(absl::StrCat("transport ", candidate.name,
                                    " is not used: ", std::string(status.message())));
    if (options.on_note) options.on_note(failures.back());
  }
  return absl::FailedPreconditionError(absl::StrJoin(failures, "; "));
}

absl::StatusOr<RowMover> MakeRowMover(const RowMoverOptions& options, const Exchange& exchange) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<TransportCandidate> candidates, CandidatesOf(options));
  EPLB_ASSIGN_OR_RETURN(TransportChoice choice,
                        FirstUsable(candidates, options.transport, exchange));
  RowMover mover{.transport = std::move(choice.transport), .queue = nullptr, .report = {}};
  mover.report.name = std::string(mover.transport->name());
  mover.report.passed_over = std::move(choice.passed_over);
  mover.report.device = options.memory.device;
  EPLB_ASSIGN_OR_RETURN(mover.queue, MakeQueueFor(options.memory));
  if (mover.report.name == "nccl") mover.report.settings = TellNcclSettings(options.nccl);
  for (auto& variable : TellNcclEnvironment()) {
    mover.report.settings.push_back(std::move(variable));
  }
  if (options.memory.device.has_value()) TellDevice(*options.memory.device, mover.report);
  return mover;
}

}  // namespace eplb
