// SPDX-License-Identifier: Apache-2.0
#include "hdf5/object_header.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace hyperslab::io::hdf5 {
namespace {

/// A run of messages: the first one of a header, or a continuation.
struct Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

/// Collects the messages of a header block by block.
class HeaderReader {
 public:
  HeaderReader(const Source& source, std::string what) : source_(source), what_(std::move(what)) {}

  std::vector<Message> read(std::uint64_t address) {
    constexpr std::uint64_t kVersionBytes = 5;
    Cursor head(source_, source_.at(address, kVersionBytes, what_), what_);
    const bool first_version = head.number(1) == 1;
    first_version ? read_first(address) : read_second(address);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Block block = blocks_[i];
      if (first_version) {
        add_messages(source_.at(block.address, block.bytes, what_), 1);
        continue;
      }
      Cursor body(source_, checked(source_, block.address, block.bytes, what_), what_);
      body.expect("OCHK");
      add_messages(body.take(body.left()), 2);
    }
    return std::move(messages_);
  }

 private:
  void read_first(std::uint64_t address) {
    constexpr std::uint64_t kPrefix = 16;
    Cursor prefix(source_, source_.at(address, kPrefix, what_), what_);
    prefix.skip(2);
    announced_ = prefix.number(2);
    prefix.skip(4);
    const std::uint64_t bytes = prefix.number(4);
    add_messages(source_.at(address + kPrefix, bytes, what_), 1);
  }

  void read_second(std::uint64_t address) {
    constexpr std::uint64_t kMostOfPrefix = 34;
    const std::uint64_t there = source_.size() - address;
    Cursor prefix(source_, source_.at(address, std::min(kMostOfPrefix, there), what_), what_);
    const std::size_t all = prefix.left();
    prefix.expect("OHDR");
    const std::uint64_t version = prefix.number(1);
    if (version != 2) prefix.fail(fmt::format("version {}, not 1 or 2", version));
    flags_ = prefix.number(1);
    if ((flags_ & 0x20U) != 0) prefix.skip(16);  // four times
    if ((flags_ & 0x10U) != 0) prefix.skip(4);   // when attributes move elsewhere
    const std::uint64_t bytes = prefix.number(std::size_t{1} << (flags_ & 3U));
    const std::uint64_t used = all - prefix.left();
    constexpr std::uint64_t kChecksumBytes = 4;
    if (bytes > source_.size()) prefix.fail(fmt::format("{} bytes of messages", bytes));
    add_messages(checked(source_, address, used + bytes + kChecksumBytes, what_).subspan(used), 2);
  }

  void add_messages(std::span<const std::byte> bytes, int version) {
    const bool has_order = version == 2 && (flags_ & 4U) != 0;
    const std::size_t prefix = version == 1 ? 8 : has_order ? 6 : 4;
    Cursor cursor(source_, bytes, what_);
    while (cursor.left() >= prefix && (version == 2 || messages_.size() < announced_)) {
      Message message;
      message.type = static_cast<std::uint16_t>(cursor.number(version == 1 ? 2 : 1));
      const std::uint64_t size = cursor.number(2);
      message.is_shared = (cursor.number(1) & 2U) != 0;
      if (version == 1) cursor.skip(3);
      if (has_order) cursor.skip(2);
      message.body = cursor.take(size);
      if (messages_.size() >= kMostMessages) cursor.fail("no end of messages");
      messages_.push_back(message);
      if (message.type == static_cast<std::uint16_t>(MessageType::continuation)) {
        Cursor target(source_, message.body, what_);
        const std::uint64_t address = target.number(8);
        blocks_.push_back({address, target.number(8)});
        if (blocks_.size() > kMostBlocks) cursor.fail("no end of continuations");
      }
    }
  }

  static constexpr std::size_t kMostMessages = 65536;
  static constexpr std::size_t kMostBlocks = 1024;
  const Source& source_;
  std::string what_;
  std::uint64_t flags_ = 0;
  std::uint64_t announced_ = 0;  ///< messages, by a header of version 1
  std::vector<Message> messages_;
  std::vector<Block> blocks_;
};

Link link_in_message(const Source& source, std::span<const std::byte> body, std::string& name) {
  Cursor cursor(source, body, "a link of the root group");
  const std::uint64_t version = cursor.number(1);
  if (version != 1) cursor.fail(fmt::format("version {}, not 1", version));
  const std::uint64_t flags = cursor.number(1);
  const std::uint64_t kind = (flags & 8U) != 0 ? cursor.number(1) : 0;
  if ((flags & 4U) != 0) cursor.skip(8);   // order of creation
  if ((flags & 16U) != 0) cursor.skip(1);  // character set
  const auto text = cursor.take(cursor.number(std::size_t{1} << (flags & 3U)));
  name.assign(reinterpret_cast<const char*>(text.data()), text.size());
  if (kind == 0) return {Link::Kind::hard, cursor.number(8)};
  if (kind == 1) return {Link::Kind::soft, 0};
  return {kind == 64 ? Link::Kind::external : Link::Kind::other, 0};
}

/// Links as messages, which HDF5 writes for few links of a new file.
std::optional<Link> find_in_messages(const Source& source, const std::vector<Message>& messages,
                                     std::string_view name) {
  for (const Message& message : messages) {
    if (message.type != static_cast<std::uint16_t>(MessageType::link) || message.is_shared)
      continue;
    std::string found;
    const Link link = link_in_message(source, message.body, found);
    if (found == name) return link;
  }
  return std::nullopt;
}

/// Links in a B-tree of symbol nodes with names in a heap, which HDF5 writes unless told otherwise.
class SymbolTable {
 public:
  SymbolTable(const Source& source, std::uint64_t heap, std::string_view name)
      : source_(source), name_(name), left_(source.size() / kEntryBytes + 1) {
    Cursor cursor(source, source.at(heap, 32, "the names of the root group"),
                  "the names of the root group");
    cursor.expect("HEAP");
    if (const auto version = cursor.number(1); version != 0) {
      cursor.fail(fmt::format("version {}, not 0", version));
    }
    cursor.skip(3);
    const std::uint64_t bytes = cursor.number(8);
    cursor.skip(8);
    names_ = source.at(cursor.number(8), bytes, "the names of the root group");
  }

  std::optional<Link> find(std::uint64_t node, int most_level) {
    Cursor cursor(source_, source_.at(node, kNodeBytes, kWhat), kWhat);
    cursor.expect("TREE");
    if (cursor.number(1) != 0) cursor.fail("another kind of node");
    const auto level = static_cast<int>(cursor.number(1));
    const std::uint64_t entries = cursor.number(2);
    if (level > most_level) cursor.fail(fmt::format("a node of level {}", level));
    count(entries + 1, cursor);
    // key, child, key, child, ..., key
    Cursor body(source_, source_.at(node + kNodeBytes, 16 * entries + 8, kWhat), kWhat);
    for (std::uint64_t i = 0; i < entries; ++i) {
      body.skip(8);
      const std::uint64_t child = body.number(8);
      const auto found = level > 0 ? find(child, level - 1) : find_in_leaf(child);
      if (found) return found;
    }
    return std::nullopt;
  }

 private:
  static constexpr const char* kWhat = "the tree of the root group";
  static constexpr std::uint64_t kNodeBytes = 24;
  static constexpr std::uint64_t kEntryBytes = 8;  // the least of an entry of any node

  /// A file has no more entries than fit into it: nodes that lead in circles end here.
  void count(std::uint64_t entries, const Cursor& cursor) {
    if (entries > left_) cursor.fail("nodes that are met again and again");
    left_ -= entries;
  }

  std::optional<Link> find_in_leaf(std::uint64_t address) {
    constexpr std::uint64_t kSymbolBytes = 40;
    Cursor cursor(source_, source_.at(address, 8, kWhat), kWhat);
    cursor.expect("SNOD");
    cursor.skip(2);
    const std::uint64_t symbols = cursor.number(2);
    count(symbols + 1, cursor);
    Cursor body(source_, source_.at(address + 8, kSymbolBytes * symbols, kWhat), kWhat);
    for (std::uint64_t i = 0; i < symbols; ++i) {
      const std::uint64_t name = body.number(8);
      const std::uint64_t object = body.number(8);
      const std::uint64_t kind = body.number(4);
      body.skip(20);
      if (!is_name(name, body)) continue;
      return Link{kind == 2 ? Link::Kind::soft : Link::Kind::hard, object};
    }
    return std::nullopt;
  }

  [[nodiscard]] bool is_name(std::uint64_t offset, const Cursor& cursor) const {
    if (offset >= names_.size()) cursor.fail("a name beyond all names");
    const auto rest = names_.subspan(offset);
    const auto end = std::ranges::find(rest, std::byte{0});
    if (end == rest.end()) cursor.fail("a name without end");
    const std::string_view found(reinterpret_cast<const char*>(rest.data()),
                                 static_cast<std::size_t>(end - rest.begin()));
    return found == name_;
  }

  const Source& source_;
  std::string_view name_;
  std::uint64_t left_;
  std::span<const std::byte> names_;
};

/// Address of the object header of the root group.
std::uint64_t root_of(const Source& source) {
  const std::string what = "the superblock";
  constexpr std::uint64_t kVersion = 8;
  const auto version = std::to_integer<unsigned>(source.at(kVersion, 1, what)[0]);
  const auto number_at = [&](std::uint64_t address) {
    return Cursor(source, source.at(address, 8, what), what).number(8);
  };
  if (version < 2) return number_at(version == 0 ? 64 : 68);
  constexpr std::uint64_t kSuperblockBytes = 48;
  Cursor fields(source, checked(source, 0, kSuperblockBytes, what), what);
  fields.skip(11);
  if (version == 3 && (fields.number(1) & 1U) != 0) {
    source.fail_unread("an HDF5 file that its writer has closed",
                       "one that is open for writing, or was when its writer ended");
  }
  return number_at(36);
}

}  // namespace

std::vector<Message> messages_at(const Source& source, std::uint64_t address,
                                 const std::string& what) {
  return HeaderReader(source, "the header of " + what).read(address);
}

std::optional<std::span<const std::byte>> find_message(const Source& source,
                                                       const std::vector<Message>& messages,
                                                       MessageType type, const std::string& what) {
  const auto found = std::ranges::find(messages, static_cast<std::uint16_t>(type), &Message::type);
  if (found == messages.end()) return std::nullopt;
  if (found->is_shared) {
    source.fail_unread(what + " that is described by itself",
                       "a description that it shares with others (a committed type)");
  }
  return found->body;
}

std::optional<Link> find_link(const Source& source, std::string_view name) {
  constexpr int kMostLevel = 31;
  const std::string what = "the root group";
  const std::vector<Message> messages = messages_at(source, root_of(source), what);
  const auto table = find_message(source, messages, MessageType::symbol_table, what);
  if (table) {
    Cursor cursor(source, *table, "the symbol table of the root group");
    const std::uint64_t tree = cursor.number(8);
    return SymbolTable(source, cursor.number(8), name).find(tree, kMostLevel);
  }
  if (const auto link = find_in_messages(source, messages, name)) return link;
  if (const auto info = find_message(source, messages, MessageType::link_info, what)) {
    Cursor cursor(source, *info, "the links of the root group");
    cursor.skip(1);
    if ((cursor.number(1) & 1U) != 0) cursor.skip(8);  // largest order of creation
    if (cursor.number(8) != kUndefinedAddress) {
      source.fail_unread("a root group of few datasets", "so many links that a heap holds them");
    }
  }
  return std::nullopt;
}

}  // namespace hyperslab::io::hdf5
