#include "client/cli/formats/zip_archive.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

constexpr char kLocal[] = "PK\x03\x04";
constexpr char kCentral[] = "PK\x01\x02";
constexpr char kEnd[] = "PK\x05\x06";

std::string Good() { return *WriteZip({{"first", std::string(1000, 'x')}, {"second", ""}}); }

TEST(ZipArchiveTest, MembersComeBackAndBytesRepeat) {
  const ZipMembers expected = {{"first", std::string(1000, 'x')}, {"second", ""}};
  EXPECT_EQ(Must(ReadZip(Good())), expected);
  EXPECT_EQ(Must(ReadZip(Good(), {.max_members = 2, .stored_only = true})), expected);
  EXPECT_EQ(Good(), Good());
}

TEST(ZipArchiveTest, BrokenArchivesAreRefused) {
  const std::string good = Good();
  std::string flipped = good;
  flipped[good.find("xxxx") + 5] = 'y';
  // Claims of 10^9 bytes, and of more than there is below the limit.
  auto claim = [&good](uint64_t size) {
    return Patched(Patched(good, kCentral, 24, size, 4), kLocal, 22, size, 4);
  };
  std::string zip64(20, '\0');
  zip64.replace(0, 4, "PK\x06\x07");
  std::vector<ZipMember> many;
  many.reserve(65);
  for (int i = 0; i < 65; ++i) many.push_back({absl::StrCat("m", i), "x"});
  const Refused cases[] = {
      {"Empty", "", "no whole zip archive"},
      {"OnlyMagic", kLocal, "no whole zip archive"},
      {"CutInEnd", good.substr(0, good.size() - 4), "cut off"},
      {"CutInDirectory", good.substr(0, good.size() - 60), "no whole zip archive"},
      {"Trailing", good + "x", "bytes after its end"},
      {"CutFront", good.substr(100), "broken"},
      {"Zip64", With(good, kEnd, zip64 + kEnd), "zip64"},
      {"EntriesHuge", Patched(Patched(good, kEnd, 8, 65535, 2), kEnd, 10, 65535, 2), "broken"},
      {"DirectoryHuge", Patched(good, kEnd, 12, 1000000000, 4), "broken"},
      {"DirectoryAt", Patched(good, kEnd, 16, 1000000000, 4), "broken"},
      {"NoMembers", kEnd + std::string(18, '\0'), "0 members"},
      {"TooMany", *WriteZip(many), "65 members, expected 1..64"},
      {"ClaimHuge", claim(1000000000), "claims 1000000000 bytes, at most"},
      {"ClaimMore", claim(100000), "member \"first\""},
      {"ClaimLess", claim(10), "member \"first\""},
      {"Checksum", flipped, "member \"first\": CRC error"},
      {"MethodInOnePlace", Patched(good, kCentral, 10, 99, 2), "broken"},
      {"Method", Patched(Patched(good, kCentral, 10, 77, 2), kLocal, 8, 77, 2), "member \"first\""},
      {"Encrypted", Patched(Patched(good, kCentral, 8, 1, 2), kLocal, 6, 1, 2), "member \"first\""},
  };
  for (const Refused& refused : cases) {
    const absl::Status status = ReadZip(refused.bytes).status();
    ExpectRefusal(refused, absl::Status(status.code(), absl::StrCat("f: ", status.message())));
  }
}

TEST(ZipArchiveTest, MembersThatShareBytesAreNotReadTwice) {
  std::string shared = Good();
  const size_t first = shared.find(kCentral);
  const size_t second = shared.rfind(kCentral);
  shared.replace(second + 16, 12, shared, first + 16, 12);  // checksum and sizes
  shared.replace(second + 42, 4, shared, first + 42, 4);    // place in the file
  EXPECT_THAT(ReadZip(shared, {.max_members = 2, .stored_only = true}).status().message(),
              testing::HasSubstr("member \"second\": claims 1000 bytes, at most"));
}

}  // namespace
}  // namespace eplb
