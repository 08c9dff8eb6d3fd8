// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "hdf5/source.hpp"

namespace hyperslab::io::hdf5 {

/// Types of messages that are read here ("HDF5 File Format Specification" 3.0, IV.A.2).
enum class MessageType : std::uint16_t {
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  filters = 0x0B,
  continuation = 0x10,
  symbol_table = 0x11,
};

/// One message of an object header.
struct Message {
  std::uint16_t type = 0;
  bool is_shared = false;  ///< the body says where the message is
  std::span<const std::byte> body;
};

/// All messages of the object header at `address`, of version 1 or 2, with its continuations'
/// messages. `what` names the object.
[[nodiscard]] std::vector<Message> messages_at(const Source& source, std::uint64_t address,
                                               const std::string& what);

/// The first message of a type; nothing if there is none. Throws if it is shared.
[[nodiscard]] std::optional<std::span<const std::byte>> find_message(
    const Source& source, const std::vector<Message>& messages, MessageType type,
    const std::string& what);

/// A name's entry in the root group.
struct Link {
  enum class Kind : std::uint8_t { hard, soft, external, other };
  Kind kind = Kind::hard;
  std::uint64_t address = 0;  ///< address of the object header, of a hard link only
};

/// The link `name` of the root group; nothing if there is none.
[[nodiscard]] std::optional<Link> find_link(const Source& source, std::string_view name);

}  // namespace hyperslab::io::hdf5
