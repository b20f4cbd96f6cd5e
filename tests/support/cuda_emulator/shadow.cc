#include "tests/support/cuda_emulator/shadow.h"

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>

namespace eplb::cuda_emulator {
namespace {

constexpr uintptr_t kWordBytes = 8;
constexpr uintptr_t kPageBytes = 4096;
constexpr size_t kNotes = 8;  // the first four are of one cache line

struct Note {
  uint32_t block = 0;
  uint32_t time = 0;
  uint32_t place = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;  // bytes of the word, a bit each; 0: no note
  uint8_t kind = 0;   // bits below

  bool writes() const { return (kind & 1) != 0; }
  bool is_atomic() const { return (kind & 2) != 0; }
  Moment when() const { return {block, time, thread}; }
};
static_assert(sizeof(Note) == 16);

struct alignas(64) Word {
  std::array<Note, kNotes> notes;  // those in use come first
};
using Page = std::array<Word, kPageBytes / kWordBytes>;

struct Shadow {
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;  // by number
  // Pages of recent accesses.
  struct Recent {
    uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Recent, 64> recent;
};

Shadow& TheShadow() {
  static auto* const shadow = new Shadow();
  return *shadow;
}

std::array<Note, kNotes>& NotesAt(uintptr_t address) {
  Shadow& shadow = TheShadow();
  const uintptr_t number = address / kPageBytes;
  Shadow::Recent& recent = shadow.recent[number % shadow.recent.size()];
  if (recent.page == nullptr || recent.number != number) {
    std::unique_ptr<Page>& page = shadow.pages[number];
    if (page == nullptr) page = std::make_unique<Page>();
    recent = {number, page.get()};
  }
  return (*recent.page)[address % kPageBytes / kWordBytes].notes;
}

// True if each access that conflicts with `note` conflicts with `old`, a note of the same bytes or
// more.
bool IsStricter(const Note& old, const Note& note) {
  return (old.bytes & note.bytes) == note.bytes && (old.writes() || !note.writes()) &&
         (!old.is_atomic() || note.is_atomic());
}

void AddTo(std::array<Note, kNotes>& notes, const Note& note, const Clock& clock, bool of_block,
           std::vector<Conflict>& conflicts, const std::byte* at) {
  size_t used = 0;
  size_t num_alike = 0;  // notes that keep others of the kind out
  size_t last_alike = 0;
  size_t i = 0;
  for (; i < kNotes && notes[i].bytes != 0; ++i) {
    const Note& old = notes[i];
    if (of_block && old.block != note.block) continue;
    const bool is_now =
        old.time == note.time && old.thread == note.thread && old.block == note.block;
    if (is_now && IsStricter(old, note)) return;
    const bool is_past = clock.Knows(old.when());
    const auto both = static_cast<uint8_t>(old.bytes & note.bytes);
    if (!is_past && both != 0 && (old.writes() || note.writes()) &&
        !(old.is_atomic() && note.is_atomic())) {
      conflicts.push_back({old.when(), {old.writes(), old.is_atomic(), old.place}, at, both});
    }
    if (is_past && IsStricter(note, old)) continue;
    if (old.kind == note.kind && old.bytes == note.bytes) {
      ++num_alike;
      last_alike = used;
    }
    if (used != i) notes[used] = old;
    ++used;
  }
  for (size_t unused = used; unused < i; ++unused) notes[unused].bytes = 0;
  const bool has_room = used < kNotes && num_alike < 2;
  notes[has_room ? used : num_alike > 0 ? last_alike : kNotes - 1] = note;
}

}  // namespace

std::vector<Conflict> NoteAccess(const void* address, size_t size, const Access& access,
                                 const Clock& clock, bool of_block) {
  std::vector<Conflict> conflicts;
  const Moment& now = clock.now();
  Note note{.block = now.block,
            .time = now.time,
            .place = access.place,
            .thread = now.thread,
            .kind = static_cast<uint8_t>((access.writes ? 1 : 0) | (access.is_atomic ? 2 : 0))};
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + size;
  for (uintptr_t at = begin; at < end; at += kWordBytes - at % kWordBytes) {
    const uintptr_t first = at % kWordBytes;
    const uintptr_t count = std::min(kWordBytes - first, end - at);
    note.bytes = static_cast<uint8_t>(((1U << count) - 1) << first);
    const auto* const word = static_cast<const std::byte*>(address) + (at - begin) - first;
    AddTo(NotesAt(at), note, clock, of_block, conflicts, word);
  }
  return conflicts;
}

void ForgetAccesses(const void* begin, size_t size) {
  Shadow& shadow = TheShadow();
  const auto address = reinterpret_cast<uintptr_t>(begin);
  for (uintptr_t page = address / kPageBytes; page * kPageBytes < address + size; ++page) {
    shadow.pages.erase(page);
    shadow.recent[page % shadow.recent.size()] = {};
  }
}

void ForgetAllAccesses() {
  TheShadow().pages.clear();
  TheShadow().recent.fill({});
}

}  // namespace eplb::cuda_emulator
