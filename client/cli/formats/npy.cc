#include "client/cli/formats/npy.h"

#include <zip.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "base/invalid_input.h"
#include "base/status_macros.h"

namespace eplb {

namespace {

constexpr size_t kMaxNpyDimensions = 8;
constexpr int64_t kMaxDimension = int64_t{1} << 31;

// Reads the Python dictionary {'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), }.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : text_(text) {}

  absl::StatusOr<NpyHeader> Read() {
    if (!Take("{")) return Unexpected("{");
    while (!Take("}")) {
      EPLB_ASSIGN_OR_RETURN(const std::string key, Quoted());
      if (!Take(":")) return Unexpected(":");
      EPLB_RETURN_IF_ERROR(ReadValue(key));
      if (!Take(",") && Next() != '}') return Unexpected(", or }");
    }
    if (Next() != '\0') return Unexpected("the end");
    if (seen_.size() != 3) {
      return InvalidInput("the header's dictionary lacks one of descr, fortran_order and shape");
    }
    return header_;
  }

 private:
  absl::Status ReadValue(const std::string& key) {
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
      return InvalidInput("the header gives ", key, " twice");
    }
    seen_.push_back(key);
    if (key == "descr") {
      if (Next() == '[') return InvalidInput("is a structured array");
      EPLB_ASSIGN_OR_RETURN(header_.descr, Quoted());
      return absl::OkStatus();
    }
    if (key == "fortran_order") {
      header_.fortran_order = Take("True");
      return header_.fortran_order || Take("False") ? absl::OkStatus()
                                                    : Unexpected("True or False");
    }
    if (key == "shape") return ReadShape();
    return InvalidInput("the header's dictionary has an unknown key");
  }

  absl::Status ReadShape() {
    if (!Take("(")) return Unexpected("(");
    while (!Take(")")) {
      (void)Next();
      int64_t size = -1;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || size > kMaxDimension ||
          header_.shape.size() == kMaxNpyDimensions) {
        return InvalidInput("the header's shape has a dimension outside 0..2^31");
      }
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      header_.shape.push_back(size);
      if (!Take(",") && Next() != ')') return Unexpected(", or )");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Quoted() {
    const char quote = Next();
    if (quote != '\'' && quote != '"') return Unexpected("a quoted word");
    const size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos || end > 32) return Unexpected("a short quoted word");
    const std::string word(text_.substr(1, end - 1));
    const bool printable =
        std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (!printable) return Unexpected("printable words");
    text_.remove_prefix(end + 1);
    return word;
  }

  // The next character that is no space, NUL at the end.
  char Next() {
    const size_t start = std::min(text_.find_first_not_of(" \n\t"), text_.size());
    text_.remove_prefix(start);
    return text_.empty() ? '\0' : text_.front();
  }

  bool Take(std::string_view word) {
    (void)Next();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  static absl::Status Unexpected(const char* expected) {
    return InvalidInput("the header is not numpy's dictionary: expected ", expected);
  }

  std::string_view text_;
  std::vector<std::string> seen_;
  NpyHeader header_;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes) {
  if (!bytes.starts_with(kNpyMagic)) return InvalidInput("does not begin with the magic of .npy");
  auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  constexpr size_t kVersionAt = 6;
  constexpr size_t kLengthAt = 8;
  if (bytes.size() < kLengthAt + 4) return InvalidInput("truncated in the header");
  const int version = byte(kVersionAt);
  if (version < 1 || version > 3 || byte(kVersionAt + 1) != 0) {
    return InvalidInput("has .npy version ", version, ".", byte(kVersionAt + 1),
                        ", expected 1.0 to 3.0");
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{byte(kLengthAt + i)} << (8 * i);
  const size_t start = kLengthAt + length_bytes;
  if (length > bytes.size() - start) {
    return InvalidInput("truncated in the header: it claims ", length, " bytes, ",
                        bytes.size() - start, " follow");
  }
  EPLB_ASSIGN_OR_RETURN(NpyHeader header, DictReader(bytes.substr(start, length)).Read());
  header.data_offset = start + length;
  return header;
}

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

constexpr int64_t kMaxCells = int64_t{1} << 28;

// Where cell (window, layer, expert) lies, in numbers from the first.
struct Layout {
  int64_t windows = 1;
  int64_t layers = 0;
  int64_t experts = 0;
  int64_t window_stride = 0;
  int64_t layer_stride = 0;
  int64_t expert_stride = 0;
};

absl::StatusOr<Layout> LayoutOf(const NpyHeader& header) {
  const std::vector<int64_t>& shape = header.shape;
  if (shape.size() != 2 && shape.size() != 3) {
    return InvalidInput("has ", shape.size(),
                        " dimensions, expected [layers, experts] or [windows, layers, experts]");
  }
  Layout layout{.windows = shape.size() == 3 ? shape[0] : 1,
                .layers = shape[shape.size() - 2],
                .experts = shape[shape.size() - 1]};
  int64_t cells = 1;
  for (const int64_t size : {layout.windows, layout.layers, layout.experts}) {
    if (size < 1) return InvalidInput("has a dimension of size 0");
    if (size > kMaxCells / cells) {
      return InvalidInput("claims ", layout.windows, " x ", layout.layers, " x ", layout.experts,
                          " numbers, at most ", kMaxCells, " are read");
    }
    cells *= size;
  }
  if (header.fortran_order) {
    layout.window_stride = 1;
    layout.layer_stride = layout.windows;
    layout.expert_stride = layout.windows * layout.layers;
  } else {
    layout.window_stride = layout.layers * layout.experts;
    layout.layer_stride = layout.experts;
    layout.expert_stride = 1;
  }
  return layout;
}

template <class Number, class Matrix>
Matrix WindowMatrix(const char* data, const Layout& layout, int64_t window) {
  Matrix matrix(layout.layers, layout.experts);
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t expert = 0; expert < layout.experts; ++expert) {
      const int64_t index = window * layout.window_stride + layer * layout.layer_stride +
                            expert * layout.expert_stride;
      Number number;  // the data is not aligned
      std::memcpy(&number, data + static_cast<size_t>(index) * sizeof(Number), sizeof(Number));
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here, and keeps its sign.
      matrix(layer, expert) = static_cast<typename Matrix::Scalar>(number);
    }
  }
  return matrix;
}

template <class Number>
absl::StatusOr<Load> WindowLoad(const char* data, const Layout& layout, int64_t window) {
  if constexpr (std::is_floating_point_v<Number>) {
    return Load::FromEstimates(WindowMatrix<Number, RealMatrix>(data, layout, window));
  } else {
    LoadMatrix counts = WindowMatrix<Number, LoadMatrix>(data, layout, window);
    if constexpr (std::is_same_v<Number, uint64_t>) {
      // A uint64 above 2^63-1 came out negative.
      for (Eigen::Index i = 0; i < counts.size(); ++i) {
        if (counts.data()[i] >= 0) continue;
        return InvalidInput("layer ", i / counts.cols(), " expert ", i % counts.cols(), " is ",
                            static_cast<uint64_t>(counts.data()[i]), ", counts are at most 2^63-1");
      }
    }
    return Load::FromCounts(std::move(counts));
  }
}

struct NumberType {
  std::string_view descr;
  int64_t size;
  absl::StatusOr<Load> (*load)(const char* data, const Layout& layout, int64_t window);
};

constexpr NumberType kNumberTypes[] = {
    {"|i1", 1, &WindowLoad<int8_t>},  {"|u1", 1, &WindowLoad<uint8_t>},
    {"<i1", 1, &WindowLoad<int8_t>},  {"<u1", 1, &WindowLoad<uint8_t>},
    {"<i2", 2, &WindowLoad<int16_t>}, {"<u2", 2, &WindowLoad<uint16_t>},
    {"<i4", 4, &WindowLoad<int32_t>}, {"<u4", 4, &WindowLoad<uint32_t>},
    {"<i8", 8, &WindowLoad<int64_t>}, {"<u8", 8, &WindowLoad<uint64_t>},
    {"<f4", 4, &WindowLoad<float>},   {"<f8", 8, &WindowLoad<double>},
};

absl::StatusOr<NumberType> FindType(const std::string& descr) {
  for (const NumberType& type : kNumberTypes) {
    if (type.descr == descr) return type;
  }
  const char* why = "";
  if (descr.ends_with("f2")) why = " (float16 cannot hold counts above 2048 exactly)";
  if (descr.starts_with(">")) why = " (big endian)";
  if (descr.ends_with("O")) why = " (a pickle)";
  return InvalidInput("has the dtype ", descr, why,
                      ", expected a little-endian int8..int64, uint8..uint64, float32 or float64");
}

}  // namespace

absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(bytes));
  EPLB_ASSIGN_OR_RETURN(const NumberType type, FindType(header.descr));
  EPLB_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(header));
  const std::string_view data = bytes.substr(header.data_offset);
  const int64_t expected = layout.windows * layout.layers * layout.experts * type.size;
  if (static_cast<int64_t>(data.size()) != expected) {
    const bool shorter = static_cast<int64_t>(data.size()) < expected;
    return InvalidInput(shorter ? "truncated: " : "too long: ", "has ", data.size(),
                        " bytes of numbers, the header claims ", expected);
  }
  std::vector<LoadWindow> windows;
  for (int64_t window = 0; window < layout.windows; ++window) {
    absl::StatusOr<Load> load = type.load(data.data(), layout, window);
    if (!load.ok()) {
      if (layout.windows == 1) return load.status();
      return InvalidInput("window ", window, ": ", load.status().message());
    }
    windows.push_back({window, window, *std::move(load)});
  }
  return windows;
}

namespace {

constexpr std::string_view kSuffix = ".npy";

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Archive = std::unique_ptr<zip_t, Discard>;

struct CloseMember {
  void operator()(zip_file_t* file) const { (void)zip_fclose(file); }
};
using MemberFile = std::unique_ptr<zip_file_t, CloseMember>;

struct FreeSource {
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using Source = std::unique_ptr<zip_source_t, FreeSource>;

std::string Why(zip_error_t* error) {
  std::string why = zip_error_strerror(error);
  zip_error_fini(error);
  return why;
}

// The library takes memory for as many entries as the end record claims: 65535 in a plain one, any
// number in zip64's. So there is one end record, it is the plain one, and nothing follows it.
absl::Status CheckEndRecord(std::string_view bytes) {
  constexpr size_t kRecordBytes = 22;
  constexpr size_t kSearchedBytes = kRecordBytes + 65535 + 20;  // comment, zip64's locator
  const std::string_view tail = bytes.substr(bytes.size() - std::min(bytes.size(), kSearchedBytes));
  const size_t first = tail.find("PK\x05\x06");
  if (first == std::string_view::npos) {
    return InvalidInput("is no whole zip archive: its end record is missing");
  }
  if (first + kRecordBytes != tail.size() || tail.find("PK\x06\x07") != std::string_view::npos) {
    return InvalidInput(
        "is a zip archive with a comment, in zip64, cut off or with bytes after its end");
  }
  return absl::OkStatus();
}

absl::StatusOr<Archive> Open(std::string_view bytes) {
  zip_error_t error;
  zip_error_init(&error);
  Source source(zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error));
  zip_t* archive =
      source == nullptr ? nullptr : zip_open_from_source(source.get(), ZIP_RDONLY, &error);
  if (archive == nullptr) return InvalidInput("is a broken zip archive: ", Why(&error));
  (void)source.release();  // the archive's now
  return Archive(archive);
}

absl::StatusOr<std::string> ReadMember(zip_t* archive, const zip_stat_t& info) {
  if (info.size > static_cast<zip_uint64_t>(kMaxMemberBytes)) {
    return InvalidInput("claims ", info.size, " bytes, at most ", kMaxMemberBytes, " are read");
  }
  const MemberFile file(zip_fopen_index(archive, info.index, 0));
  if (file == nullptr) return InvalidInput(zip_strerror(archive));
  std::string bytes;
  char chunk[1 << 16];
  while (true) {
    const zip_int64_t got = zip_fread(file.get(), chunk, sizeof(chunk));
    if (got < 0) return InvalidInput(zip_file_strerror(file.get()));
    if (got == 0) break;
    bytes.append(chunk, static_cast<size_t>(got));
    if (bytes.size() > info.size) break;
  }
  if (bytes.size() != info.size) return InvalidInput("has not the ", info.size, " bytes it claims");
  return bytes;
}

absl::Status InMember(std::string_view name, absl::string_view message) {
  return InvalidInput("member \"", Clipped(name, 80), "\": ", message);
}

}  // namespace

absl::StatusOr<std::vector<NpzMember>> ParseNpz(std::string_view bytes) {
  EPLB_RETURN_IF_ERROR(CheckEndRecord(bytes));
  EPLB_ASSIGN_OR_RETURN(const Archive archive, Open(bytes));
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  if (count < 1 || count > kMaxMembers) {
    return InvalidInput("is a zip archive of ", count, " members, expected 1..", kMaxMembers);
  }
  std::vector<NpzMember> members;
  for (zip_int64_t i = 0; i < count; ++i) {
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_INDEX | ZIP_STAT_SIZE;
    zip_stat_t info;
    if (zip_stat_index(archive.get(), static_cast<zip_uint64_t>(i), 0, &info) != 0 ||
        (info.valid & kNeeded) != kNeeded) {
      return InvalidInput("zip member ", i, " is broken");
    }
    const std::string_view name = info.name;
    if (!name.ends_with(kSuffix)) return InMember(name, "is no .npy");
    NpzMember member{.name = std::string(name.substr(0, name.size() - kSuffix.size())),
                     .bytes = {}};
    const bool twice = std::any_of(members.begin(), members.end(), [&](const NpzMember& other) {
      return other.name == member.name;
    });
    if (twice) return InMember(name, "is given twice");
    absl::StatusOr<std::string> content = ReadMember(archive.get(), info);
    if (!content.ok()) return InMember(name, content.status().message());
    member.bytes = *std::move(content);
    members.push_back(std::move(member));
  }
  return members;
}

absl::StatusOr<std::string> NpzBytes(const std::vector<NpzMember>& members) {
  zip_error_t error;
  zip_error_init(&error);
  Source source(zip_source_buffer_create(nullptr, 0, 0, &error));
  if (source == nullptr) return absl::InternalError(Why(&error));
  zip_source_keep(source.get());  // the archive frees one reference, we read through the other
  Archive archive(zip_open_from_source(source.get(), ZIP_TRUNCATE, &error));
  if (archive == nullptr) {
    zip_source_free(source.get());
    return absl::InternalError(Why(&error));
  }
  for (const NpzMember& member : members) {
    zip_source_t* content =
        zip_source_buffer(archive.get(), member.bytes.data(), member.bytes.size(), 0);
    const zip_int64_t index =
        zip_file_add(archive.get(), absl::StrCat(member.name, std::string(kSuffix)).c_str(),
                     content, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(content);
      return absl::InternalError(zip_strerror(archive.get()));
    }
    constexpr zip_uint16_t kFirstOfJanuary1980 = (1 << 5) | 1;
    const auto at = static_cast<zip_uint64_t>(index);
    (void)zip_set_file_compression(archive.get(), at, ZIP_CM_STORE, 0);
    (void)zip_file_set_dostime(archive.get(), at, 0, kFirstOfJanuary1980, 0);
  }
  if (zip_close(archive.get()) != 0) return absl::InternalError(zip_strerror(archive.get()));
  (void)archive.release();  // closed
  zip_stat_t info;
  if (zip_source_stat(source.get(), &info) != 0 || zip_source_open(source.get()) != 0) {
    return absl::InternalError("cannot read the zip archive back");
  }
  std::string bytes(info.size, '\0');
  const zip_int64_t got = zip_source_read(source.get(), bytes.data(), bytes.size());
  (void)zip_source_close(source.get());
  if (got != static_cast<zip_int64_t>(bytes.size())) {
    return absl::InternalError("cannot read the zip archive back");
  }
  return bytes;
}

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
  return InvalidInput(
      "is a dump of torch.save, a pickle: `python -m eplb.convert DUMP.pt OUT.json` of the Python "
      "package makes JSON of it, counts and maps");
}

}  // namespace eplb
