import kotlinx.serialization.json.Json

/** Parses the event in each input line, and writes it as JSON again. */
fun main() {
    for (line in generateSequence(::readLine)) {
        println(Json.encodeToString(Json.decodeFromString<OrderPlaced>(line)))
    }
}
