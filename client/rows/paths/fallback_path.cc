// The rule by which all ranks change to the second path at the same post.
#include "client/rows/paths/fallback_path.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

class FallbackPath : public RowPath {
 public:
  explicit FallbackPath(FallbackPathParts parts) : parts_(std::move(parts)) {}

  ~FallbackPath() override {
    // The second path may still write into the staging of the first.
    if (second_ != nullptr && !second_->Close(/*done=*/false).ok()) (void)parts_.first.release();
  }

  std::string_view name() const override { return path().name(); }
  std::string_view fallback_reason() const override { return fallback_reason_; }
  std::span<std::byte> staging() override { return parts_.first->staging(); }
  int32_t way() const override { return second_ == nullptr ? 0 : 1; }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
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

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    return PathOf(frame).Place(link, frame);
  }
  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    return Remember(PathOf(frame).Take(link, frame));
  }

  absl::Status Close(bool done) override {
    aborted_ = aborted_ || !done;
    return Remember(path().Close(done));
  }

  bool is_whole() const override { return path().is_whole(); }
  absl::Status DropShared() override { return path().DropShared(); }

 private:
  RowPath& path() const { return second_ == nullptr ? *parts_.first : *second_; }
  // A rank that has not changed yet may still send frames for a communicator.
  RowPath& PathOf(const RowMessage& frame) const {
    return IsAboutRow(frame) ? path() : *parts_.first;
  }

  absl::Status Remember(absl::Status status) {
    if (!status.ok() && second_ == nullptr) last_error_ = std::string(status.message());
    return status;
  }

  absl::Status FallBack() {
    EPLB_ASSIGN_OR_RETURN(second_, parts_.make_second(parts_.first->staging()));
    // A communicator holds memory of the device. None of its groups is under way, because Close has
    // ended them. A communicator that cannot be dropped stays and is harmless.
    (void)parts_.first->DropShared();
    fallback_reason_ = absl::StrCat("transport ", std::string(parts_.first->name()),
                                    " was given up: ", kMaxFirstWayFailures,
                                    " migrations in a row failed, the last one with: ",
                                    last_error_.empty() ? "an error of another rank" : last_error_);
    if (parts_.on_note) {
      parts_.on_note(absl::StrCat("rows go by ", std::string(second_->name()),
                                  " from now on: ", fallback_reason_));
    }
    return absl::OkStatus();
  }

  FallbackPathParts parts_;
  std::unique_ptr<RowPath> second_;  // null until it is used
  std::optional<uint64_t> opened_;   // id of the last post
  bool aborted_ = false;             // the last post was aborted
  uint64_t last_good_ = 0;           // last post that is known to have succeeded on all ranks
  std::string last_error_;
  std::string fallback_reason_;  // empty until the second path is used
};

}  // namespace

std::unique_ptr<RowPath> MakeFallbackPath(FallbackPathParts parts) {
  return std::make_unique<FallbackPath>(std::move(parts));
}

}  // namespace eplb
