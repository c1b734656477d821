package nakadi;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URL;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PositionedReadable;
import org.apache.hadoop.fs.Seekable;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/** Objects in S3 as Hadoop files, over plain HTTP, as by EMRFS on Glue. Janino compiles this class, so it has no
 * lambdas.
 * A folder is an object whose key ends with a slash, or a prefix of the keys of objects.
 */
public class S3Files extends FileSystem {
    private static final Pattern OBJECT = Pattern.compile("<Contents>(.*?)</Contents>", Pattern.DOTALL);
    private static final Pattern NEXT = Pattern.compile("<NextContinuationToken>(.*?)</NextContinuationToken>");
    private URI uri;
    private String endpoint;
    private String credentials;
    private Path working;

    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        this.uri = URI.create("s3://" + name.getAuthority());
        this.endpoint = conf.get("nakadi.s3.endpoint");
        this.credentials = conf.get("nakadi.s3.authorization");
        this.working = new Path("/");
        setConf(conf);
    }

    public String getScheme() { return "s3"; }
    public URI getUri() { return this.uri; }
    public Path getWorkingDirectory() { return this.working; }
    public void setWorkingDirectory(Path path) { this.working = path; }

    public FSDataInputStream open(Path path, int size) throws IOException {
        return new FSDataInputStream(new Content(get(path)));
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int size,
            short replication, long block, Progressable progress) throws IOException {
        if (!overwrite && exists(path)) { throw new FileAlreadyExistsException(path.toString()); }
        return new FSDataOutputStream(new Upload(this, path), null);
    }

    public FSDataOutputStream append(Path path, int size, Progressable progress) throws IOException {
        throw new UnsupportedOperationException("append");
    }

    public boolean rename(Path from, Path to) throws IOException {
        String source = key(from);
        String target = key(to);
        if (head(target) != null) { return false; }
        List found = objects(source + "/");
        if (head(source) != null) { copy(source, target); remove(source); }
        for (int i = 0; i < found.size(); i++) {
            String each = ((Found) found.get(i)).key;
            copy(each, target + each.substring(source.length()));
            remove(each);
        }
        return true;
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        String key = key(path);
        boolean there = exists(path);
        if (recursive) {
            List found = objects(key + "/");
            for (int i = 0; i < found.size(); i++) { remove(((Found) found.get(i)).key); }
        }
        remove(key);
        return there;
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        FileStatus status = getFileStatus(path);
        if (status.isFile()) { return new FileStatus[] {status}; }
        String folder = key(path).isEmpty() ? "" : key(path) + "/";
        List found = objects(folder);
        List listed = new ArrayList();
        List folders = new ArrayList();
        for (int i = 0; i < found.size(); i++) {
            Found each = (Found) found.get(i);
            String rest = each.key.substring(folder.length());
            int slash = rest.indexOf('/');
            if (rest.isEmpty()) { continue; }
            if (slash < 0) { listed.add(file(each)); continue; }
            String name = rest.substring(0, slash);
            if (!folders.contains(name)) {
                folders.add(name);
                listed.add(folder(new Path(path, name)));
            }
        }
        FileStatus[] all = new FileStatus[listed.size()];
        for (int i = 0; i < all.length; i++) { all[i] = (FileStatus) listed.get(i); }
        return all;
    }

    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        String key = key(path);
        if (!key.isEmpty()) { send("PUT", key + "/", "", new byte[0], null); }
        return true;
    }

    public FileStatus getFileStatus(Path path) throws IOException {
        String key = key(path);
        if (key.isEmpty()) { return folder(path); }
        Found found = head(key);
        if (found != null) { return file(found); }
        if (objects(key + "/").isEmpty()) { throw new FileNotFoundException(path.toString()); }
        return folder(path);
    }

    void put(Path path, byte[] content) throws IOException { send("PUT", key(path), "", content, null); }

    private byte[] get(Path path) throws IOException {
        byte[] content = send("GET", key(path), "", null, null);
        if (content == null) { throw new FileNotFoundException(path.toString()); }
        return content;
    }

    private void remove(String key) throws IOException { send("DELETE", key, "", null, null); }

    private void copy(String from, String to) throws IOException {
        send("PUT", to, "", send("GET", from, "", null, null), null);
    }

    private Found head(String key) throws IOException {
        Found found = new Found();
        found.key = key;
        return send("HEAD", key, "", null, found) == null ? null : found;
    }

    private List objects(String prefix) throws IOException {
        List all = new ArrayList();
        String token = null;
        do {
            String query = "?list-type=2&prefix=" + URLEncoder.encode(prefix, "UTF-8");
            if (token != null) { query += "&continuation-token=" + URLEncoder.encode(token, "UTF-8"); }
            byte[] listing = send("GET", "", query, null, null);
            if (listing == null) { return all; }
            String text = new String(listing, "UTF-8");
            Matcher each = OBJECT.matcher(text);
            while (each.find()) {
                Found found = new Found();
                found.key = plain(value(each.group(1), "Key"));
                found.size = Long.parseLong(value(each.group(1), "Size"));
                found.time = Instant.parse(value(each.group(1), "LastModified")).toEpochMilli();
                all.add(found);
            }
            Matcher next = NEXT.matcher(text);
            token = next.find() ? plain(next.group(1)) : null;
        } while (token != null);
        return all;
    }

    private byte[] send(String method, String key, String query, byte[] body, Found told) throws IOException {
        String path = URLEncoder.encode(key, "UTF-8").replace("+", "%20").replace("%2F", "/");
        URL url = new URL(this.endpoint + "/" + this.uri.getAuthority() + "/" + path + query);
        HttpURLConnection connection = (HttpURLConnection) url.openConnection();
        connection.setRequestMethod(method);
        connection.setRequestProperty("Authorization", this.credentials);
        if (body != null) {
            connection.setDoOutput(true);
            connection.setFixedLengthStreamingMode(body.length);
            connection.getOutputStream().write(body);
            connection.getOutputStream().close();
        }
        int status = connection.getResponseCode();
        if (status == 404) { drain(connection.getErrorStream()); return null; }
        if (status >= 300) { throw new IOException(method + " " + url + ": " + status); }
        if (told != null) {
            told.size = connection.getHeaderFieldLong("Content-Length", 0);
            told.time = connection.getLastModified();
        }
        return drain(connection.getInputStream());
    }

    private static byte[] drain(InputStream stream) throws IOException {
        if (stream == null) { return new byte[0]; }
        try { return stream.readAllBytes(); } finally { stream.close(); }
    }

    private static String value(String text, String name) {
        int start = text.indexOf("<" + name + ">") + name.length() + 2;
        return text.substring(start, text.indexOf("</" + name + ">"));
    }

    private static String plain(String text) {
        return text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    }

    private String key(Path path) {
        String text = makeQualified(path).toUri().getPath();
        return text.startsWith("/") ? text.substring(1) : text;
    }

    private FileStatus file(Found found) {
        return new FileStatus(found.size, false, 1, 1 << 26, found.time, new Path(this.uri + "/" + found.key));
    }

    private FileStatus folder(Path path) {
        return new FileStatus(0, true, 1, 1 << 26, 0, makeQualified(path));
    }

    static class Found {
        String key;
        long size;
        long time;
    }

    static class Upload extends ByteArrayOutputStream {
        private S3Files files;
        private Path path;
        private boolean closed;

        Upload(S3Files files, Path path) { this.files = files; this.path = path; }

        public void close() throws IOException {
            if (!this.closed) { this.closed = true; this.files.put(this.path, toByteArray()); }
        }
    }

    static class Content extends ByteArrayInputStream implements Seekable, PositionedReadable {
        Content(byte[] content) { super(content); }

        public void seek(long to) { this.pos = (int) to; }
        public long getPos() { return this.pos; }
        public boolean seekToNewSource(long to) { return false; }

        public synchronized int read(long at, byte[] into, int offset, int length) {
            int before = this.pos;
            this.pos = (int) at;
            try { return read(into, offset, length); } finally { this.pos = before; }
        }

        public void readFully(long at, byte[] into, int offset, int length) throws IOException {
            if (read(at, into, offset, length) < length) { throw new EOFException(); }
        }

        public void readFully(long at, byte[] into) throws IOException { readFully(at, into, 0, into.length); }
    }
}
