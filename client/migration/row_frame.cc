#include "client/migration/row_frame.h"

#include <bit>
#include <cstddef>
#include <span>

#include "cuda/checksum.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t kMagic = 0x5752'4c45;  // "ELRW"

uint64_t HeaderChecksum(const RowFrame& frame) {
  return cuda::ChecksumOnHost(
      std::as_bytes(std::span(&frame, 1)).first(offsetof(RowFrame, header_checksum)));
}

}  // namespace

RowFrame SealFrame(RowFrame frame) {
  frame.magic = kMagic;
  frame.header_checksum = HeaderChecksum(frame);
  return frame;
}

absl::Status CheckFrame(const RowFrame& frame) {
  if (frame.magic != kMagic || frame.header_checksum != HeaderChecksum(frame)) {
    return absl::DataLossError("a damaged frame came");
  }
  const bool carries_row =
      frame.type == RowFrameType::kPiece || frame.type == RowFrameType::kLanded;
  const bool known =
      carries_row || frame.type == RowFrameType::kPosted || frame.type == RowFrameType::kEnded;
  if (!known || frame.bytes < 0 || frame.bytes > (carries_row ? kPieceBytes : 0)) {
    return absl::DataLossError("a frame came that no rank writes");
  }
  return absl::OkStatus();
}

}  // namespace eplb
