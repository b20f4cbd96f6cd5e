#include "client/migration/fallback_path.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

class FallbackPath : public RowPath {
 public:
  explicit FallbackPath(FallbackPathParts parts) : parts_(std::move(parts)) {}

  std::string_view name() const override { return path().name(); }
  std::string_view passed_over() const override { return passed_over_; }
  std::span<std::byte> staging() override { return parts_.first->staging(); }
  int32_t way() const override { return second_ == nullptr ? 0 : 1; }

  absl::Status Open(const RowMoves& moves, PostLedger& ledger, LinkSet& links) override {
    if (opened_.has_value() && !aborted_) last_good_ = *opened_;
    const bool give_up = moves.post_id > last_good_ + kMaxFirstWayFailures;
    opened_ = moves.post_id;
    aborted_ = false;
    if (second_ == nullptr && give_up) EPLB_RETURN_IF_ERROR(FallBack());
    return Remember(path().Open(moves, ledger, links));
  }

  absl::StatusOr<bool> Advance() override {
    absl::StatusOr<bool> moved = path().Advance();
    (void)Remember(moved.status());
    return moved;
  }

  bool busy() const override { return path().busy(); }
  std::string Waiting() const override { return path().Waiting(); }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link, const RowFrame& frame) override {
    return PathOf(frame).Place(link, frame);
  }
  absl::Status Take(const PeerLink& link, const RowFrame& frame) override {
    return Remember(PathOf(frame).Take(link, frame));
  }

  absl::Status Close(bool done) override {
    aborted_ = aborted_ || !done;
    return Remember(path().Close(done));
  }

 private:
  RowPath& path() const { return second_ == nullptr ? *parts_.first : *second_; }
  // A rank that has not changed yet may still send the id of a communicator.
  RowPath& PathOf(const RowFrame& frame) const {
    return frame.type == RowFrameType::kMeet ? *parts_.first : path();
  }

  absl::Status Remember(absl::Status status) {
    if (!status.ok() && second_ == nullptr) last_error_ = std::string(status.message());
    return status;
  }

  absl::Status FallBack() {
    EPLB_ASSIGN_OR_RETURN(second_, parts_.make_second(parts_.first->staging()));
    passed_over_ = absl::StrCat("transport ", std::string(parts_.first->name()),
                                " was given up: ", kMaxFirstWayFailures,
                                " migrations in a row failed, the last one with: ",
                                last_error_.empty() ? "an error of another rank" : last_error_);
    if (parts_.on_note) {
      parts_.on_note(absl::StrCat("rows go by ", std::string(second_->name()),
                                  " from now on: ", passed_over_));
    }
    return absl::OkStatus();
  }

  const FallbackPathParts parts_;
  std::unique_ptr<RowPath> second_;  // once it is taken
  std::optional<uint64_t> opened_;   // the last post
  bool aborted_ = false;             // since then
  uint64_t last_good_ = 0;           // the last post that is known to have succeeded on all ranks
  std::string last_error_;
  std::string passed_over_;  // empty until the second way is taken
};

}  // namespace

std::unique_ptr<RowPath> MakeFallbackPath(FallbackPathParts parts) {
  return std::make_unique<FallbackPath>(std::move(parts));
}

}  // namespace eplb
