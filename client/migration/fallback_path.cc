#include "client/migration/fallback_path.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

class FallbackPath : public RowPath {
 public:
  explicit FallbackPath(FallbackPathParts parts) : parts_(std::move(parts)) {}

  std::string_view name() const override { return path().name(); }
  std::span<std::byte> staging() override { return parts_.first->staging(); }
  int32_t way() const override { return fell_back_ ? 1 : 0; }

  absl::Status Open(const RowMoves& moves, PostLedger& ledger, LinkSet& links) override {
    if (opened_.has_value() && !aborted_) last_good_ = *opened_;
    if (!fell_back_ && moves.post_id > last_good_ + kMaxFirstWayFailures) FallBack();
    opened_ = moves.post_id;
    aborted_ = false;
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
  RowPath& path() const { return fell_back_ ? *parts_.second : *parts_.first; }
  // A rank that has not changed yet may still send the id of a communicator.
  RowPath& PathOf(const RowFrame& frame) const {
    return frame.type == RowFrameType::kMeet ? *parts_.first : path();
  }

  absl::Status Remember(absl::Status status) {
    if (!status.ok() && !fell_back_) last_error_ = std::string(status.message());
    return status;
  }

  void FallBack() {
    if (parts_.on_note) {
      parts_.on_note(absl::StrCat("rows go by ", std::string(parts_.second->name()),
                                  " from now on: by ", std::string(parts_.first->name()), " ",
                                  kMaxFirstWayFailures,
                                  " migrations in a row failed, the last one with: ",
                                  last_error_.empty() ? "an error of another rank" : last_error_));
    }
    fell_back_ = true;
  }

  const FallbackPathParts parts_;
  bool fell_back_ = false;
  std::optional<uint64_t> opened_;  // the last post
  bool aborted_ = false;            // since then
  uint64_t last_good_ = 0;          // the last post that is known to have succeeded on all ranks
  std::string last_error_;
};

}  // namespace

std::unique_ptr<RowPath> MakeFallbackPath(FallbackPathParts parts) {
  return std::make_unique<FallbackPath>(std::move(parts));
}

}  // namespace eplb
