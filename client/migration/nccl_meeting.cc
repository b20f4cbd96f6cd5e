#include "client/migration/nccl_meeting.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cuda/runtime.h"

namespace eplb {

static_assert(cuda::kNcclIdBytes == kMeetBytes);

namespace {

// False when it takes longer; then it goes on by itself. On a thread of its own, since NCCL may
// wait for ever for a driver or a network card that does not answer.
bool AbortWithin(std::unique_ptr<cuda::NcclCommunicator> communicator,
                 const NcclMeetingParts& parts) {
  std::promise<void> promise;
  const std::future<void> aborted = promise.get_future();
  std::thread([device = parts.device, promise = std::move(promise),
               communicator = std::move(communicator)]() mutable {
    std::optional<absl::StatusOr<cuda::DeviceGuard>> guard;
    if (device.has_value())
      guard.emplace(cuda::DeviceGuard::Make(*device));  // a thread begins with 0
    communicator->Abort();
    communicator.reset();
    promise.set_value();
  }).detach();
  return aborted.wait_for(absl::ToChronoNanoseconds(parts.abort_timeout)) ==
         std::future_status::ready;
}

}  // namespace

NcclMeeting::NcclMeeting(NcclMeetingParts parts) : parts_(std::move(parts)) {}

int32_t NcclMeeting::IndexOf(RankId rank) const {
  const auto found = std::lower_bound(parts_.ranks.begin(), parts_.ranks.end(), rank);
  return static_cast<int32_t>(found - parts_.ranks.begin());
}

absl::Status NcclMeeting::Begin(uint64_t post_id, LinkSet& links) {
  if (up_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(Drop());
  post_id_ = post_id;
  if (parts_.ranks.size() == 1) {
    up_ = true;  // nobody to talk to
    return absl::OkStatus();
  }
  if (parts_.self != Root()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(id_, cuda::MakeNcclId(*parts_.library));
  for (PeerLink& link : links.all()) {
    link.Queue({.type = RowMessageType::kMeet, .post_id = post_id, .bytes = kMeetBytes}, id_);
    link.Flush();
  }
  return Connect(id_);
}

absl::Status NcclMeeting::Connect(const cuda::NcclId& id) {
  cuda::NcclOptions options = parts_.options;
  options.rank = IndexOf(parts_.self);
  options.num_ranks = static_cast<int32_t>(parts_.ranks.size());
  EPLB_ASSIGN_OR_RETURN(communicator_, cuda::NcclCommunicator::Begin(*parts_.library, id, options));
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclMeeting::Advance(LinkSet& links) {
  std::vector<RankId> others = parts_.ranks;
  others.erase(others.begin() + IndexOf(parts_.self));
  if (const std::string gone = links.DescribeGone(others); !gone.empty()) {
    return absl::UnavailableError(absl::StrCat("NCCL communicator of post ", post_id_, ": ", gone));
  }
  for (const RankId other : others) {
    if (links.Of(other).ended >= post_id_) {
      return absl::AbortedError(absl::StrCat("NCCL communicator of post ", post_id_, ": rank ",
                                             other.value, " ended it"));
    }
  }
  if (communicator_ == nullptr) {
    if (came_for_ != post_id_) return false;
    EPLB_RETURN_IF_ERROR(Connect(coming_));
    return true;
  }
  EPLB_ASSIGN_OR_RETURN(const bool ready, communicator_->Poll());
  if (!ready) return false;
  const auto num_ranks = static_cast<int32_t>(parts_.ranks.size());
  const bool warm = num_ranks <= parts_.warm_up_ranks && next_warm_ < num_ranks;
  if (warm) {
    EPLB_RETURN_IF_ERROR(WarmNextPair());
  } else {
    up_ = true;
  }
  return true;
}

absl::Status NcclMeeting::WarmNextPair() {
  const auto num_ranks = static_cast<int32_t>(parts_.ranks.size());
  const int32_t own = IndexOf(parts_.self);
  const int32_t distance = next_warm_++;
  const int32_t to = (own + distance) % num_ranks;
  const int32_t from = (own - distance + num_ranks) % num_ranks;
  std::optional<cuda::NcclSend> send;
  std::optional<cuda::NcclReceive> receive;
  if (HasRows(to)) send = {.to = to, .bytes = parts_.scratch.first(kScratchBytes)};
  if (HasRows(from)) {
    receive = {.from = from, .bytes = parts_.scratch.subspan(kScratchBytes, kScratchBytes)};
  }
  if (!send.has_value() && !receive.has_value()) return absl::OkStatus();
  return communicator_->SendReceive(send, receive, parts_.stream);
}

bool NcclMeeting::HasRows(int32_t index) const {
  const RankId rank = parts_.ranks[static_cast<size_t>(index)];
  return std::find(parts_.without_rows.begin(), parts_.without_rows.end(), rank) ==
         parts_.without_rows.end();
}

std::string NcclMeeting::Waiting() const {
  if (up_) return "";
  if (communicator_ == nullptr) {
    return absl::StrCat("rank ", Root().value, " has sent no id for an NCCL communicator");
  }
  return absl::StrCat("the NCCL communicator of ", parts_.ranks.size(), " ranks is not up");
}

absl::StatusOr<std::span<std::byte>> NcclMeeting::Place(RankId from) {
  if (from != Root()) {
    return absl::DataLossError("it sent the id of an NCCL communicator, which is not its part");
  }
  came_for_.reset();
  return std::span<std::byte>(coming_);
}

void NcclMeeting::Take(const RowMessage& frame) { came_for_ = frame.post_id; }

absl::Status NcclMeeting::Drop() {
  next_warm_ = 1;
  up_ = false;
  if (communicator_ != nullptr && !AbortWithin(std::move(communicator_), parts_)) {
    stuck_ = absl::InternalError(absl::StrCat("ncclCommAbort has not returned in ",
                                              absl::FormatDuration(parts_.abort_timeout)));
  }
  return stuck_;
}

}  // namespace eplb
