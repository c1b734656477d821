import { render } from "preact";
import { App } from "./app";
import { finish } from "./sign-in";
import "./style.css";
import { applyTheme } from "./theme";

applyTheme();
const refused = await finish();
render(<App refused={refused} />, document.getElementById("app")!);
