#include "client/files/formats/torch_dump.h"

#include "client/files/formats/npz.h"

namespace eplb {

bool IsTorchDump(std::string_view bytes) {
  // Protocol 2 to 5 of a pickle.
  if (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5) return true;
  // A zip's local header: the length of the name in bytes 26 and 27, the name from byte 30.
  constexpr size_t kLengthAt = 26;
  constexpr size_t kNameAt = 30;
  if (!bytes.starts_with(kZipMagic) || bytes.size() < kNameAt) return false;
  const auto low = static_cast<unsigned char>(bytes[kLengthAt]);
  const auto high = static_cast<unsigned char>(bytes[kLengthAt + 1]);
  return bytes.substr(kNameAt, size_t{low} | size_t{high} << 8).ends_with("/data.pkl");
}

absl::Status TorchDumpError() {
  return absl::InvalidArgumentError(
      "is a dump of torch.save, a pickle: `python -m eplb.convert DUMP.pt OUT.json` of the Python "
      "package makes JSON of it, counts and maps");
}

}  // namespace eplb
