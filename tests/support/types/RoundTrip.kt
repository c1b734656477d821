import kotlinx.serialization.json.Json

/** Reads an event from each line, and writes it again. */
fun main() {
    for (line in generateSequence(::readLine)) {
        println(Json.encodeToString(Json.decodeFromString<OrderPlaced>(line)))
    }
}
