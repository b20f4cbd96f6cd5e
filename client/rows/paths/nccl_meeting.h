// Brings the NCCL communicator of an EP group up, at the start and again after one was aborted: the
// lowest rank draws an id and sends it over the connections that the ranks have anyway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/peer_links.h"
#include "client/rows/row_message.h"
#include "cuda/nccl_communicator.h"
#include "placement/ids.h"

namespace eplb {

struct NcclMeetingParts {
  const cuda::NcclLibrary* library = nullptr;
  cuda::NcclOptions options;  // rank and num_ranks are filled in here
  RankId self;
  std::vector<RankId> ranks;      // ranks of the EP group, rising, with self
  std::span<std::byte> scratch;   // device memory, 2 * kScratchBytes
  void* stream = nullptr;         // stream of the communicator's groups
  std::optional<int32_t> device;  // made current for its end; absent: host memory
  absl::Duration abort_timeout;   // NCCL itself has no bound for it
  int32_t warm_up_ranks = 64;     // see NcclSettings::warm_up_ranks
  // Members of `ranks` with which this rank is not connected. Symmetric: a names b if b names a.
  std::vector<RankId> without_rows = {};
  // Ranges that all communicators send from and receive into, which can be registered. Empty:
  // nothing is registered.
  std::vector<std::span<std::byte>> memory;
  std::function<void(std::string_view line)> on_note = {};  // why nothing is registered; once
};

// Threads: one caller. Nothing here waits, but for Drop.
class NcclMeeting {
 public:
  static constexpr size_t kScratchBytes = 64;

  explicit NcclMeeting(NcclMeetingParts parts);

  // Begins to meet unless the communicator is up. post_id: equal on all ranks. errors: Internal,
  // also for ever after a Drop that failed.
  absl::Status Begin(uint64_t post_id, LinkSet& links);
  // True when something moved. REQUIRES: Begin, not up. errors: Unavailable naming who is gone,
  // Aborted naming who ended the post, Internal.
  absl::StatusOr<bool> Advance(LinkSet& links);
  bool up() const { return up_; }
  // Post for which the communicator was made.
  uint64_t post_id() const { return post_id_; }
  // REQUIRES: up.
  cuda::NcclCommunicator& communicator() { return *communicator_; }
  // True if all ranks have registered their memory with the communicator; otherwise none has.
  bool is_registered() const { return is_registered_; }
  int32_t IndexOf(RankId rank) const;
  std::string Waiting() const;

  // Takes a kRegistered frame, which may arrive before this rank begins.
  void TakeRegistered(RankId from, const RowMessage& frame);
  // Take the payload of a kMeet frame. errors: DataLoss from a rank that draws no id.
  absl::StatusOr<std::span<std::byte>> Place(RankId from);
  void Take(const RowMessage& frame);

  // Aborts the communicator, if any; the next Begin makes another. errors: Internal when NCCL has
  // not ended it in time, or failed: it is left to itself, its kernels may still write, and what
  // they may touch must never be freed. So it is for ever.
  absl::Status Drop();
  // Drops the communicator of groups that did not end. After two such communicators in a row with
  // registered memory, later ones register none, in case registration is the cause.
  absl::Status DropAfterHang();
  // Records that a group of rows has ended, so registration is not the cause of a hang.
  void NoteEnded();

 private:
  RankId Root() const { return parts_.ranks.front(); }
  absl::Status Connect(const cuda::NcclId& id);
  // Registers and tells the others, then waits for their word. True when all have agreed.
  bool AgreeOnRegistration(LinkSet& links);
  bool RegistersMemory();
  void NoteUnregistered(const std::string& why);
  // NCCL connects a pair at its first use: here, not inside a training step.
  absl::Status WarmNextPair();
  bool HasRows(int32_t index) const;  // index: of a rank in `ranks`

  const NcclMeetingParts parts_;
  cuda::NcclId id_ = {};              // drawn by the root, read while it is sent
  cuda::NcclId coming_ = {};          // being read from the root
  std::optional<uint64_t> came_for_;  // the post that `coming_` is for
  uint64_t post_id_ = 0;
  std::unique_ptr<cuda::NcclCommunicator> communicator_;
  int32_t next_warm_ = 1;  // distance of the pair
  bool has_told_ = false;  // this rank sent its answer whether it has registered
  bool is_registered_ = false;
  std::map<RankId, std::pair<uint64_t, bool>> registered_;  // the last word of others, of a post
  int32_t num_hangs_ = 0;  // consecutive hangs of registered communicators
  bool noted_ = false;
  bool up_ = false;
  absl::Status stuck_;  // a communicator that could not be ended
};

}  // namespace eplb
