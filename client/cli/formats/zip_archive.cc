#include "client/cli/formats/zip_archive.h"

#include <zip.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "client/cli/formats/arrays.h"

namespace eplb {
namespace {

// Unpacked bytes of all members. Deflate shrinks zeros a thousand times, and members may share
// bytes of the file. So claims are checked before memory is taken, which grows with the bytes that
// come.
constexpr uint64_t kMaxInflatedBytes = uint64_t{1} << 28;

template <auto Free>
struct Freed {
  template <class Handle>
  void operator()(Handle* handle) const {
    (void)Free(handle);
  }
};
using Archive = std::unique_ptr<zip_t, Freed<zip_discard>>;
using MemberFile = std::unique_ptr<zip_file_t, Freed<zip_fclose>>;
using Source = std::unique_ptr<zip_source_t, Freed<zip_source_free>>;

std::string Why(zip_error_t* error) {
  std::string why = zip_error_strerror(error);
  zip_error_fini(error);
  return why;
}

// True if a record of zip64 ends at `end`, the plain one's place, and claims as few members as the
// plain one can. torch.save writes one into every file.
bool IsSmallZip64(std::string_view bytes, size_t end) {
  constexpr size_t kRecordBytes = 56;
  constexpr size_t kLocatorBytes = 20;
  if (end < kRecordBytes + kLocatorBytes) return false;
  const size_t locator = end - kLocatorBytes;
  const size_t record = locator - kRecordBytes;
  return bytes.substr(locator).starts_with("PK\x06\x07") &&
         bytes.substr(record).starts_with("PK\x06\x06") &&
         LittleEndian(bytes.substr(locator + 8, 8)) == record &&
         LittleEndian(bytes.substr(record + 32, 8)) <= 65535;
}

// The library takes memory for as many entries as the end record claims: 65535 in a plain one, any
// number in zip64's. So there is one end record, one of zip64 claims no more, and nothing follows.
absl::Status CheckEndRecord(std::string_view bytes) {
  constexpr size_t kRecordBytes = 22;
  constexpr size_t kSearchedBytes = kRecordBytes + 65535 + 20;  // comment, zip64's locator
  const size_t start = bytes.size() - std::min(bytes.size(), kSearchedBytes);
  const size_t end = bytes.find("PK\x05\x06", start);
  if (end == std::string_view::npos) {
    return InvalidInput("is no whole zip archive: its end record is missing");
  }
  const bool zip64 = bytes.find("PK\x06\x07", start) != std::string_view::npos;
  if (end + kRecordBytes != bytes.size() || (zip64 && !IsSmallZip64(bytes, end))) {
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

absl::StatusOr<ZipMembers> ReadZip(std::string_view bytes, const ZipLimits& limits) {
  EPLB_RETURN_IF_ERROR(CheckEndRecord(bytes));
  EPLB_ASSIGN_OR_RETURN(const Archive archive, Open(bytes));
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  if (count < 1 || count > limits.max_members) {
    return InvalidInput("is a zip archive of ", count, " members, expected 1..",
                        limits.max_members);
  }
  ZipMembers members;
  uint64_t left = limits.stored_only ? bytes.size() : kMaxInflatedBytes;
  for (zip_int64_t i = 0; i < count; ++i) {
    constexpr zip_uint64_t kNeeded =
        ZIP_STAT_NAME | ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD;
    zip_stat_t info;
    if (zip_stat_index(archive.get(), static_cast<zip_uint64_t>(i), 0, &info) != 0 ||
        (info.valid & kNeeded) != kNeeded) {
      return InvalidInput("zip member ", i, " is broken");
    }
    if (limits.stored_only && info.comp_method != ZIP_CM_STORE) {
      return InMember(info.name, "is compressed, expected stored bytes");
    }
    if (info.size > left) {
      return InMember(info.name,
                      absl::StrCat("claims ", info.size, " bytes, at most ", left, " are read"));
    }
    left -= info.size;
    absl::StatusOr<std::string> content = ReadMember(archive.get(), info);
    if (!content.ok()) return InMember(info.name, content.status().message());
    if (!members.emplace(info.name, *std::move(content)).second) {
      return InMember(info.name, "is given twice");
    }
  }
  return members;
}

absl::StatusOr<std::string> WriteZip(const std::vector<ZipMember>& members) {
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
  for (const ZipMember& member : members) {
    zip_source_t* content =
        zip_source_buffer(archive.get(), member.bytes.data(), member.bytes.size(), 0);
    const zip_int64_t index =
        zip_file_add(archive.get(), member.name.c_str(), content, ZIP_FL_ENC_UTF_8);
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

}  // namespace eplb
