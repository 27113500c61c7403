# terrace_embed(TARGET HEADER NAMESPACE name=file[+file...]...): puts files of the tree into a library. HEADER declares,
# in NAMESPACE, `extern const std::string_view name;` for each; a name with several files has them one after the other.
# A change of a file rebuilds the library.
#
# The file is a script too: cmake -DOUTPUT=... -DHEADER=... -DNAMESPACE=... -DENTRIES=... -P TerraceEmbed.cmake.
if(CMAKE_SCRIPT_MODE_FILE)
  set(source "// Made of the files of the tree at build time.\n#include <${HEADER}>\n\nnamespace ${NAMESPACE} {\n")
  string(REPLACE "|" ";" ENTRIES "${ENTRIES}")
  foreach(entry IN LISTS ENTRIES)
    string(REGEX MATCH "^([a-z_]+)=(.*)$" entry "${entry}")
    set(name "${CMAKE_MATCH_1}")
    string(REPLACE "*" ";" files "${CMAKE_MATCH_2}")
    set(hex "")
    foreach(file IN LISTS files)
      file(READ "${file}" bytes HEX)
      string(APPEND hex "${bytes}")
    endforeach()
    string(LENGTH "${hex}" digits)
    math(EXPR size "${digits} / 2")
    string(REGEX REPLACE "(..)" "\\\\x\\1" text "${hex}")
    # Lines of 32 bytes; an escape is four characters.
    string(REPEAT "." 128 line)
    string(REGEX REPLACE "(${line})" "\\1\"\n    \"" text "${text}")
    string(APPEND source "\nconst std::string_view ${name}(\n    \"${text}\",\n    ${size});\n")
  endforeach()
  file(WRITE "${OUTPUT}" "${source}\n}  // namespace ${NAMESPACE}\n")
  return()
endif()

set(TERRACE_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

function(terrace_embed target header namespace)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cpp")
  set(entries "")
  set(files "")
  foreach(entry IN LISTS ARGN)
    string(REGEX MATCH "^([a-z_]+)=(.*)$" entry "${entry}")
    set(name "${CMAKE_MATCH_1}")
    string(REPLACE "+" ";" names "${CMAKE_MATCH_2}")
    list(TRANSFORM names PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
    list(APPEND files ${names})
    list(JOIN names "*" joined)
    list(APPEND entries "${name}=${joined}")
  endforeach()
  list(JOIN entries "|" entries)
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DHEADER=${header}" "-DNAMESPACE=${namespace}"
      "-DENTRIES=${entries}" -P "${TERRACE_EMBED_SCRIPT}"
    DEPENDS ${files} "${TERRACE_EMBED_SCRIPT}" VERBATIM
    COMMENT "Embedding files into ${target}")
  target_sources(${target} PRIVATE "${output}")
endfunction()
